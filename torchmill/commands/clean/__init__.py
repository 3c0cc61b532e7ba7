"""`invoke status` and `invoke clean`."""
