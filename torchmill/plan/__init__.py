"""Decisions: pure functions of facts, host and options; nothing is touched.

- base_requirement: which version of torch a dependent package is built against
- build_plan: compute the plan of a cell: everything a session will do, without touching anything
- constraints: what the rules of a cell demand of compilers and libraries, and why
- cuda_libraries: which cuDNN, NCCL and MAGMA a build uses
- cuda_selection: choose toolkit, host compiler and libraries of a build with CUDA together
- cuda_toolkit: which CUDA toolkit and which host compiler a build uses
- diagnosis/: from a build's log to the cause of its failure
- doctor/: judge a machine against what a build needs; pure
- estimate: estimate time, memory and disk of a build from measured builds
- job_count: how many compilers may run at a time
- keys: digests of everything that can change a tree, an environment, or what is compiled
- link_overflow: predict whether the link of libtorch_cuda overflows
- options: options of sessions (after `--`) and of `invoke plan`: parsed and checked
- render: A plan as text, as JSON-ready data, and as a shell script that needs no torchmill
- system_packages: the system packages that a release needs, and the command that installs them
- wheel_name: the name of a wheel: version, local label and tags
"""
