"""TOML in, values out: facts, matrix, selected release.

- arch_list: lists of compute capabilities: parse and check them, find GPUs by name, tell which GPUs a list serves
- gpu_hosts: superchips and boards: GPUs that exist only together with a processor, and so tell what machine they are in
- cell_lookup: find the cell that a name means, here or on another machine; explain why it cannot be built
- distributions: which packages exist in which release of which Linux distribution
- facts_model: values of facts: measured builds, links, conda names, container images, who provides toolkits
- facts_reader: read build_configs/ into values; all problems are collected into one error
- matrix: the matrix: which cells exist, which a release can build, and why not; what the rules of a cell demand
- model: values: builds, plans, packages, releases, rules, toolkits, machines
- official_wheels: upstream's wheels by the facts: their Pythons and machines, and which indexes have them
- own_facts: put a project's own facts beside the shipped ones, in the user's cache
- package_reader: read packages and releases; a file with mistakes is left out, and does not stop the others
- selection: the selected release, and the sessions that nox lists for it
- toml_reader: read TOML tables strictly: every mistake is collected with its place
- trial: who has built a cell before: upstream, somebody whose report is recorded, or nobody who is known
"""
