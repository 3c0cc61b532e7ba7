"""Judge a machine against what a build needs; pure."""
