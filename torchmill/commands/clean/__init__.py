"""`invoke status` and `invoke clean`.

- command: the two tasks, and what they print
- stored: what is stored where, when it was last needed, and what keeps it
- removal: choose what to remove by kind, age, release and size, and remove it
- in_use: which processes and locks use a folder at the moment
"""
