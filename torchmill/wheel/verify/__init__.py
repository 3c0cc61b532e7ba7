"""Check a wheel: read it, then install and try it in a clean environment; `verification` does all of it."""
