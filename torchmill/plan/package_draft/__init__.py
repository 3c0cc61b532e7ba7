"""Draft the facts about a package that nobody has described, from its source; pure.

What is read:
- source_texts: the files of a source as values
- setup_script: what the text of a setup.py shows, which is parsed and not run
- metadata: name, version, Pythons and requirements
- findings: what else the files show, each with its place

What is run:
- scenarios: the environments in which setup.py is run dry, and which of them leads to a build
- setup_run: the record of a dry run
- edits: changes of setup.py that a draft proposes

What comes of it:
- draft: the facts of a draft, from the texts and the dry runs
- compose: put a draft together, or say why there is nothing to draft
- draft_text: the file of a package
- summary: one screen on a draft and on its trials
"""
