"""Check a wheel: read it, then install and try it in a clean environment.

- checks/: scripts that the wheel's own interpreter runs
- clean_environment: install a wheel in a clean virtual environment and run its checks there
- device_code: read the GPU code in a library
- library_checks: check libraries against platform tags, and against what an environment has
- static_checks: check a wheel without running it, and against its sibling wheels
- verification: all of these checks, in order
"""
