"""Publishing wheels; nothing is ever replaced."""
