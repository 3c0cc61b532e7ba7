"""One cell, from its plan to `dist/`.

- compile: compile one raw wheel under the memory guard: environment, command, log, and the error where it
  fails
- containers/: container engines: images, commands, runs, and a watchdog
- context: all that one session works with: plan, source, folders, interpreter and machine inputs of a
  cell
- cross/: builds for another architecture, in a container
- disk_space: how much disk space a build has and will need, before it starts
- machine_inputs: what the machine contributes to a build: compilers, libraries, variables, and files read
  outside the tree
- pipeline: the main job: one cell from its plan to the verified wheel in dist/
- prepare: make the tree of a cell ready to compile: reuse the existing one where possible, else make a
  fresh copy
- progress_line: the progress of a build: edges, time and memory, on one moving line or in log lines
- retarget: retarget a shared tree from one interpreter to another
- steps: the steps of one wheel (compile, pack, verify), what each records, and the wheel's manifest
- tree: the folders of a build: the tree that interpreters share, and what each cell makes
- up_to_date: which steps of a cell need not be done again: their inputs, the records of earlier runs, the
  differences
"""
