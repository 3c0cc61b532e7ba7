"""A static package index, and a server for a quick look.

- folder: write the folder of an index atomically; files that are not ours stay untouched
- pages: the pages of a static package index (PEP 503, 691, 592, 658, 700, 714): contents, layout, yanked
  versions
- scan: read the wheels that go into an index, each once; remember them in the index's state file
- server: `invoke serve`: serve an index on this machine's own address
"""
