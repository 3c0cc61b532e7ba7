"""Builds for another architecture than this machine's: the same suite, run in a container of that one."""
