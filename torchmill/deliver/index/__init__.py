"""A static package index."""
