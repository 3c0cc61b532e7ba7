"""One wheel of torch: describe it, slim it, judge it. What a module does, its first line says.

What any wheel needs (reading, repairing, packing, checking) is the distribution millpress, in
packages/.

- debug_archive: the archive with the debug information of a wheel
- dist_files: a verified wheel in dist/ and the files beside it: manifest, statement, SBOM
- finished_wheel: a wheel's metadata, and the manifest beside it
- planned_wheel: the wheel that a plan promises, and by which the finished one is judged
- sbom: the SBOM of a wheel
- sbom_vulnerabilities: the known vulnerabilities of a wheel in its SBOMs
- slim: leave out of libraries the GPU code that the requested GPUs do not run
- slim_wheel: slim a wheel, or a package in an environment
- variant_metadata: write and read what a wheel is a variant for, in the format of a draft
- statement: the in-toto statement of a wheel with SLSA provenance, its builder and materials
- written_wheel: write a wheel anew from another one: with other libraries, as a variant
- verify/: check a wheel against its plan: static_checks, device_code, slimming, clean_environment
"""
