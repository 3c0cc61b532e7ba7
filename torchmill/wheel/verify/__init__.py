"""Check a wheel: read it, then install and try it in a clean environment.

- checks/: checks
- clean_environment: install a wheel in a clean environment and run its checks there
- device_code: the code for GPUs in a library: which compute capabilities it is for, and how large it is
- library_checks: follow what the libraries of an installed wheel need: all of it must be found, and none
  be of the driver
- static_checks: the wheels of one version must require the same: a resolver reads the metadata of one,
  for all of them
- verification: try a finished wheel as a user meets it: its tags and RECORD, then a clean environment
  that computes
"""
