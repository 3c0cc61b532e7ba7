"""From a verified wheel to its users."""
