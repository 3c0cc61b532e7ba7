"""What maintainers run: figures of the structure, facts against upstream."""
