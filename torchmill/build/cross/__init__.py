"""Builds for another architecture, in a container.

- container: plan the container of a build for another architecture: mounts, variables and settings passed
  on
"""
