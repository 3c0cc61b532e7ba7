"""The gate: the small program before every compiler of a build.

- fallback: the gate for machines on which gate.c cannot be compiled: that file says
  what it does and how it talks
- install: compile the gate, and place it before the compilers of a build
"""
