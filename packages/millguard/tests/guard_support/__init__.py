"""Stand-ins for guards, gates, kernels and recordings, for tests."""
