"""Programs for maintainers: figures of the structure, facts against upstream."""
