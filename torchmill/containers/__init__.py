"""Container engines: which one is here, and what it is told."""
