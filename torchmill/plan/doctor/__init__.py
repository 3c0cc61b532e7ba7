"""Judge a machine against what a build needs; pure.

- compiler: check the C++ compiler against the release and the toolkit
- cuda: check the CUDA toolkit of a build, its parts and its libraries
- disk_and_memory: check disk and memory against the estimate of a build
- examination: examine a machine for a build, or for all it could build
- finding: findings, and the context that checks read
- gpu_driver: check GPUs and driver, and explain why no GPU answers
- remedy: the `invoke toolkit` commands that provide what a build lacks
- system: check interpreter, tools, source, system packages and C library
"""
