"""Proof of a wheel against the published one: upstream's own tests, and speed.

- check: the session `check-…`, which runs upstream's tests on both wheels and compares them
- compared_wheels: the two wheels, each in an environment of its own
- outcomes: the outcomes of tests on two wheels, their comparison and its report
- speed: the session `speed-…`, which times small programs with both wheels
- test_files: upstream's test files: where they lie, and which of them judge a wheel
- upstream_run: run upstream's tests in one environment, within bounds of time and memory
"""
