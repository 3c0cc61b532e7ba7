"""Proof of a wheel against the published one: upstream's own tests, and speed."""
