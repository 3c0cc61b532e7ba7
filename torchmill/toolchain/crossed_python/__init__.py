"""What the Python of a crossed build reads when it starts, because PYTHONPATH names this folder."""
