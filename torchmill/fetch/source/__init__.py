"""Source trees: git, archives, Debian, PyPI.

- apt: run an apt of our own: list and download source and binary packages without changing the system
- archive: unpack archives safely
- debian: `--from debian`: a release from Debian's source archive, for networks without GitHub
- fetcher: fetch the source tree of a package, and hold a fetched one while it is copied
- git_clone: clone a release: a shallow fetch of one commit with its pinned submodules, resumable and
  verified
- git_command: run git, find repositories, read them, and explain git's errors
- local: `--from PATH|URL`: copy a folder, or unpack an archive
- pypi: `--from pypi`: a release's source archive from the package index
- record: the record of a fetched source: read it, write it, find the latest
- request: what to fetch and from where, and what to do when the usual way to a source is closed
- source_dir: the folder of a fetched source: its checks, publishing by rename
"""
