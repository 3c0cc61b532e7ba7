"""Builds for another architecture, in a container.

- container: plan the container of a build for another architecture: mounts, variables and settings passed
  on
- requested: find the builds for other architectures that a command line names
"""
