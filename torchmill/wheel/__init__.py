"""One wheel: edit it, pack it, judge it. What a module does, its first line says.

- builder: who builds a wheel: this version of torchmill, on whose machine
- dist_files: a verified wheel in dist/ and the files beside it: manifest, statement, SBOM
- pack/: from the raw wheel to the delivered one: staging (zip_reader), repair (bundling, elf_edit, licences,
  policy; macos), metadata, wheel_writer (compressor, zip_writer)
- sbom, statement: the SBOM of a wheel, and the in-toto statement with SLSA provenance
- verify/: check a wheel: static_checks, library_checks, device_code, clean_environment; scripts in checks/
- wheel_file: read a wheel file: name, METADATA, digest, and whether its tags and RECORD are true
"""
