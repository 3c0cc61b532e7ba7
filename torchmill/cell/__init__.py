"""One cell, from its plan to `dist/`.

- added_files: files that somebody put into a prepared tree: neither the source has them, nor did a build make them
- compile: compile one raw wheel under the memory guard, cut off from the network: environment, command, log, errors
- containers/: container engines, their images and runs, and builds for another architecture
- context: all that one session works with: plan, source, folders, interpreter and machine inputs of a cell
- disk_space: how much disk space a build has and will need, before it starts
- hidden_nvcc: hide nvcc from a build without CUDA
- machine_inputs: what the machine contributes to a build: compilers, libraries, variables, files
- pipeline: the main job: one cell from its plan to the verified wheel in dist/
- prepare: make a tree ready to compile: a fresh copy, the old one, or one retargeted to another Python
- progress_line: the progress of a build: edges, time and memory, on one moving line or in log lines
- share: a build that does not go to its end: one share of its compiles, or as much as some time allows
- steps: the steps of one wheel (compile, pack, verify), what each records, and the wheel's manifest
- up_to_date: which steps of a cell need not be done again, by their inputs and the records of earlier runs
"""
