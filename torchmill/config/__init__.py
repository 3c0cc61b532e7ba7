"""TOML in, values out: facts, and the selected release.

- arch_list: lists of compute capabilities: read them as PyTorch does, and write them
- build: a build as a value: one cell of the matrix, and the machines that cells are for
- catalogue_reader: read packages and releases; a file with mistakes is left out, and does not stop
  the others
- conda_facts: how conda names projects, versions and licences
- costs: the costs of builds: measured ones, and the assumptions of an estimate
- distributions: which packages exist in which release of which Linux distribution, as
  distributions.toml says
- editions: pair the releases that a package's own file declares with releases of torch
- facts: all facts of build_configs/ as one value
- facts_reader: read build_configs/ into values; all problems are collected into one error
- facts_state: the state of all files that decide the facts of a folder, as one stat
- field_types: types of fields whose texts have a certain form; the reader of facts refuses any
  other
- gpu: GPUs, their compute capabilities, and the machines that they come with
- gpu_names: find GPUs by the names that people and drivers give them, and tell their capabilities
- images: container images that others are built on, and the archives that they download
- link_facts: facts about the links of large libraries, from which overflows are predicted
- linux_distribution: a Linux distribution, as its os-release file names it
- official_wheels: upstream's wheels: their Pythons and machines, and the indexes that have them
- own_facts: put a project's own facts beside the shipped ones: a file replaces the shipped one of
  its name
- package: packages that can be built, and the releases that their own files declare
- package_reader: read the files of packages, and find their mistakes
- package_wheels: recorded wheels of packages: those that a package's project offers
- parsed: which C++ files of extensions parse against the headers of which torch
- release: one release of a package, and its facts about CUDA toolkits
- release_lookup: find releases in the facts: by tag, by the torch that they go with, the newest
- release_reader: read the files of releases: a table for each package, those of dependents after
  their base
- remembered_facts: the facts of a checkout, from a file in the user's cache if none has changed
- rule: rules of packages: their conditions, and their effects on a build
- selection: the selected release: the tag that TORCHMILL_TAG names, or that `invoke fetch` recorded
- served_gpus: tell which GPUs device code runs on: code of the same major version, and PTX
- toml_reader: read TOML tables strictly: every mistake is collected with its place, and none stops
  it
- toolkit: CUDA toolkits: the GPUs that each compiles for, its parts, and its providers
- versions: versions and their bounds: order Pythons, test versions, and write bounds for people
- wheel_variants: wheels of one version for different hardware: their properties and providers
- vulnerability: published vulnerabilities of packages
- wheel_code: readings of published wheels: their code for GPUs, and their demands on a processor
"""
