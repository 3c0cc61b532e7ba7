"""A static package index, and a server for a quick look."""
