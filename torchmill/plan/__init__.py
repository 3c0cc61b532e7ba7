"""Decisions: pure functions of facts, host and options; nothing is touched.

- arch_choice: choose the compute capabilities of a build: check a list, or take the list of the
  official build
- arch_toolkits: which CUDA toolkits make code for a GPU, and which releases build with them
- base_package: the torch that a dependent package, such as torchvision, is built against
- boards: which CUDA toolkits the driver of a Jetson's JetPack runs
- build_options: the options of a build: everything that a user can give after `--`
- build_plan: compute the plan of a cell: everything that a session will do
- build_variables: the variables that a build sets, and who decides on each
- causes: diagnose a build's log: match the first error against the catalogue in causes.toml
- cell: a cell of the matrix: a build of a release, and the reasons if it is impossible
- cell_choice: choose the cells to build: by names or patterns, or by Pythons, toolkits and GPUs
- cell_lookup: find the cell that an identifier names, and explain why a cell cannot be built
- compile_costs: the recorded costs of compiling a release's sources, for the memory guard
- crossing: builds that are crossed: compiled on this machine, by cross compilers, for another arch
- cuda_libraries: which cuDNN, NCCL, cuSPARSELt, NVSHMEM and MAGMA a build uses
- cuda_toolkit: choose toolkit, host compiler and libraries of a build with CUDA together
- debug_info: plan a build with debug information: the flags, and the builds that cannot have it
- diagnosis/: choose among the reasons of a failure by facts
- doctor/: judge a machine against the needs of a build, and say how to meet them
- drivers: which drivers run the code of which CUDA toolkits
- compile_work: how long compiling a release takes by the catalogue of measured builds
- estimate: estimate time, memory and disk of a build, from measured builds
- estimate_report: the cost of a build, and the risk that its link overflows, for people and as data
- family_results: the results of building a family: the end of each command, and the summary
- exposure: which known vulnerabilities a wheel has, with the patches that a plan applies
- first_error: find the first real error in a build's log, and not ninja's report of it
- gpu_hosts: GPUs that exist only together with a processor, and so identify a machine
- host_compiler: choose the C++ compiler of a build: the release must take it, and nvcc
- input_digests: digests of everything that changes the result of a build
- job_count: how many compilers a build starts at a time, by its cores and its memory
- line_patterns: regular expressions that are looked for in lines of others, in a time that is
  bounded
- link_overflow: predict whether the link of libtorch_cuda overflows
- local_gpus: the GPUs of the machine that builds: a build without an arch list makes code for these
- log_lines: the lines of a build's log that may tell of a failure, without prefixes of other tools
- matrix: the matrix: which cells exist, which a release can build, and why not the others
- new_torch: a torch that has appeared on the package index, and that the facts do not know yet
- official_parts: the parts of official wheels that a plan leaves out, such as MKL or MAGMA
- official_support: which official builds run on GPUs of a compute capability
- options: the words of options, of sessions (after `--`) and of tasks: parsed and checked
- package_draft/: draft the facts about a package that nobody has described
- package_family: a family of packages that are all built against one torch: its cells, their order,
  their results
- package_matrix: the matrix of an extension: by torch and toolkit, which wheels exist, which can
  be built
- package_request: packages that a user asks for by their names on PyPI, as in `invoke build
  flash-attn`
- pattern_cost: how the time of a regular expression grows with the length of a line
- pattern_literals: literals that every match of a regular expression contains
- pattern_tree: regular expressions as trees: take one apart, and compile the parts
- plan: the plan of one build: all that will happen, computed before anything is touched
- providers: which providers of toolkits, libraries and compilers a machine can use
- published: published wheels: which a release has, where to get them, and which fit a machine
- published_wheel: a wheel that upstream published, and whether it would do instead of a build
- rebuild: plan to build a wheel once more: its first build by its records, and the differences
- recorded_wheels: recorded wheels of packages: what their names say, and which go with a torch
- render: a plan as text and as JSON-ready data
- rules: which rules hold for a build, and what they together demand of tools
- script: a plan as a shell script that builds the same wheel without torchmill
- session_names: names of nox's sessions: read them from its command line, and tell what each makes
- settings: weigh the settings of --set: which are refused, and which make a build heavier
- shares: a build in shares on several machines: how long it takes, and how many are worth it
- shell_seal: seal a build from its user's shell, and find the settings that do not get through
- step_origins: the origins of the steps on the way to a wheel: providers, addresses and bytes
- storage: the bytes that each part of a build takes on disk
- system_packages: the system packages that a release needs, and the command that installs them
- translated_text: lines of logs in English, whatever the language of their tools
- trial: who has built a cell before: upstream, somebody whose report is recorded, or nobody known
- variant_choice: which wheel variant a machine gets, and which GPUs get the same one
- walk: the walk to some wheels: its steps, and what would stop them, before the first one runs
- wheel_fit: judge a published wheel: whether the code that was read in it runs on a machine
- wheel_name: the name of a wheel: version, local label and tags
"""
