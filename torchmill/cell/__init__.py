"""One cell, from its plan to `dist/`.

- added_files: files that somebody put into a prepared tree: they are neither the source's nor a build's
- cache_setup: the compiler cache of one build, with the parts that other machines compiled
- compile: compile one raw wheel under the memory guard, cut off from the network
- compile_stage: the first stage: compile the raw wheel in a prepared tree, and record how
- containers/: container engines, their images and runs, and builds for another architecture
- context: everything that one session works with: plan, source, folders, interpreter and machine inputs of a cell
- disk_space: how much disk space a build has and will need, before it starts
- environment: the environment variables of a build: sealed, and filled in from its plan
- folders: the folders and files of one build: its tree, and what its cell makes
- guarded_compilers: lead all compilers of a build to the guard's gate, and say which go past it
- hidden_nvcc: hide nvcc from a build without CUDA
- host_survey: ask this machine for the packages and parts of toolkits that facts name
- machine_inputs: what the machine contributes to a build: compilers, libraries, variables, files
- manifest: the manifest of a wheel: everything that is known about how it was made
- pack_stage: the second stage: bundle the raw wheel's libraries, correct its metadata, and pack it
- pipeline: the main job: one cell from its plan to the verified wheel in dist/
- prepare: make a tree ready to compile: a fresh copy, the old one, or that of another interpreter
- progress_line: the progress of a build: edges, time and memory, on one moving line or in log lines
- recorded_inputs: what ninja recorded of a tree's objects: the files that were read for each
- retarget: hand a tree from one interpreter to another
- sandbox: cut a build off from the network
- session_environment: the session's own environment: the requirements of the build
- share: a build that does not go to its end: one share of its compiles, or as much as some time allows
- source_edits: files of a tree's source that are not as they were fetched and patched
- up_to_date: which stages of a cell need not be done again, by their inputs and the records of earlier runs
- verify_stage: the last stage: try the packed wheel in a clean environment, and publish it
"""
