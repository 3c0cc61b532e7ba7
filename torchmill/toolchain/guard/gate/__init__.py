"""The gate: the small program before every compiler of a build; gate.c says what it does and how it talks.

- install: compile the gate, and place it before the compilers of a build
"""
