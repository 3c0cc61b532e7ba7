"""What a project needs to use the wheels: the tables and lines of its package manager, written out.

What is on offer (`offers`, read by `shelf`) and what the official indexes have (`official`) lead to one
decision (`deciding`): for each platform the pins, and where they come from. A module per tool writes it down.
"""
