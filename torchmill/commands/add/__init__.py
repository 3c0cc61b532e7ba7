"""`invoke add`: draft the facts about a package that nobody has described.

- command: bring the source, draft the file, write it, try it
- draft_trial: read a draft as facts, plan a cell, compile a first file of each language
- offer: offer to draft packages that `invoke build` is asked for
- source_files: read the files of an unpacked source into values
- trial_runs: run setup.py dry as often as it takes
"""
