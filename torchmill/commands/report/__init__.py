"""`invoke report`."""
