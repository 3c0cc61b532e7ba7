"""Source trees: git, archives, Debian, PyPI."""
