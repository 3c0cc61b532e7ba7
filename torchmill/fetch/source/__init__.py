"""Source trees: git, archives, Debian, PyPI.

- apt: run an apt of our own: list and download source and binary packages without changing the system
- archive: `--from PATH|URL`: copy a folder, or unpack an archive safely
- debian: `--from debian`: a release from Debian's source archive, for networks without GitHub
- fetcher: fetch the source tree of a package, load a fetched one, and hold it while it is copied
- git_clone: clone a release: a shallow fetch of one commit with its pinned submodules, resumable and
  verified
- git_command: run git, show its progress, read repositories, and explain its errors
- git_transport: fetch one commit of a repository, starting from objects that are already on the disk
- pypi: `--from pypi`: a release's source archive from the package index
- request: what to fetch and from where: mirrors, allowed URLs, and the error when a host does not answer
- source_dir: the folder of a fetched source: its record, its checks, publishing by rename
"""
