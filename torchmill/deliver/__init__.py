"""From a verified wheel to its users: packages, images, indexes, proof of origin.

- agreement: check that a wheel, its manifest, its statement and its SBOMs agree
- conda/: conda packages and channels
- differences: compare a JSON document with the expected document, field by field
- image/: Dockerfiles of `invoke image`
- index/: a static package index
- libtorch: make the libtorch archive for C++ users from a verified wheel, and try it
- offers: wheels that were built elsewhere: a cell takes one instead of building it
- products: products made from a verified wheel: find the wheel, parse options, reuse a product
- publish/: publishing wheels; nothing is ever replaced
- retention: keep the newest releases, and remove older releases
- signature: signatures of deliveries, by keys of one's own or by an identity of Sigstore
- snippet/: what a project declares to use the wheels
- variant_resolver: ask uv which wheel variant a machine gets
- wheel_comparison: compare two wheels file by file
- templates: fill in the templates of files that users get: Dockerfiles, project files and pages
"""
