"""One wheel: edit it, pack it, judge it.

- builder: who builds a wheel: this version of torchmill, on whose machine
- dist_files: a verified wheel in dist/ and the files beside it: manifest, statement, SBOM
- pack/: from the raw wheel to the delivered one: repair, tags, metadata, zip
- sbom: the SBOM of a wheel, as CycloneDX 1.6
- statement: the in-toto statement of a wheel with SLSA provenance
- verify/: check a wheel: read it, then install and try it in a clean environment
- wheel_file: read a wheel file: name, METADATA, digest, and whether its tags and RECORD are true
"""
