"""Judge a machine against the needs of a build, and say how to meet them; pure."""
