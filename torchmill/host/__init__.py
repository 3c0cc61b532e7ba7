"""What this machine has and allows.

- certificates: find the certificates of authorities by which downloads are verified
- compilers: find the C++ compilers of a machine, tell them apart, and digest the programs behind
  them
- crossing: what this machine has to build for another arch: cross compilers, toolkits, QEMU, Pythons
- cuda_toolkits: find the CUDA toolkits of a machine and their parts
- description: a machine described in a TOML file: read strictly, and written so that it is read
  again
- disk_usage: the disk space that files take: a file with several names (hard links) counts once
- distribution: the Linux distribution of a machine, its package managers, and who may install
  packages
- environment_modules: find the CUDA toolkits of environment modules, Tcl's and Lmod's, by reading
  their files
- environments: the virtual environments of cells: made from stored ones, and filled for a purpose
- gpu_driver: the GPUs of a machine and their driver: the kernel's part, and the library that
  programs load
- host: a machine that builds, as a value: measured, or described in a file
- installed_packages: packages that are installed in an environment, by their metadata
- interpreters: find the CPythons of this machine without running any; prove one by running it
- libraries: find libraries that a build links, by their headers
- measurement: measure this machine: read what can be read, and run programs for the rest in
  parallel
- named_places: look at places of this machine that a log names, without running anything there
- native: this machine's system and architecture, and those of an executable file
- own_runs: the builds that this machine has made, by the manifests of its wheels
- processor: the processor that a build is for (--cpu): its flags, and the features that a machine
  needs
- programs: run the programs of a machine, remember their answers, and tell the versions of its
  tools
- provisioned: the toolkits, libraries and compilers in the user's cache, by their records
- shared_tools: the tools that all cells of a tree share, such as CMake and ninja: installed once,
  and linked
- stored_folders: folders that are made once, stored, and copied from then on
- system_state: ask the operating system: its version, its packages, Xcode's tools, and whether it
  translates
- tree_users: the user of a tree: an interpreter and its packages, whose headers compilers read
"""
