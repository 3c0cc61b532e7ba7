"""One wheel: edit it, pack it, judge it.

- builder: who builds: this suite, on whose machine
- dist_files: A verified wheel in dist/, and what stands beside it: its manifest, its statement, its SBOM
- pack/: from the raw wheel to the delivered one: repair, tags, metadata, zip
- sbom: the bill of materials of a wheel, as CycloneDX 1.6: what is in it, what it requires, what made it
- statement: all that a wheel was made of, as its manifest tells it
- verify/: check a wheel: read it, then install and try it in a clean environment
- wheel_file: the wheels of dist/: what each says of itself, and whether that is so
"""
