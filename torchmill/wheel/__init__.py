"""One wheel: edit it, pack it, judge it. What a module does, its first line says.

- dist_files: a verified wheel in dist/ and the files beside it: manifest, statement, SBOM
- pack/: from the raw wheel to the delivered one: stage, repair, set tags and metadata, write the zip archive
- planned_wheel: the wheel that a plan promises, and by which the finished one is judged
- sbom: the SBOM of a wheel
- slim: leave out of libraries the code for GPUs that none of some GPUs runs
- slim_wheel: slim a wheel, or a package in an environment
- statement: the in-toto statement of a wheel with SLSA provenance, its builder and materials
- verify/: check a wheel: static_checks, device_code, slimming, clean_environment; its scripts are in /checks
- wheel_file: read a wheel file: name, METADATA, digest, and whether its tags and RECORD are true
"""
