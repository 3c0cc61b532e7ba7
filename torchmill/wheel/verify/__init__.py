"""Check a wheel: `verification` reads it, installs it in a clean environment and tries it."""
