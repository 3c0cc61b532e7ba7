"""From a verified wheel to its users: index, snippets, conda, libtorch, images, publishing, provenance.

- agreement: whether a wheel, its manifest, its statement and its SBOM agree, field by field
- conda/: conda packages and channels
- image/: dockerfiles of `invoke image`
- index/: a static package index
- libtorch: make the libtorch archive for C++ users from a verified wheel, and try it with a CMake project
- offers: wheels that were built elsewhere, taken instead of built
- products: products made from a verified wheel: find the wheel, parse options, reuse an unchanged product
- publish/: publishing wheels; nothing is ever replaced
- retention: which releases are kept, and what a place has of the others
- signature: who signed a delivery: keys of one's own, bundles of Sigstore
- snippet/: what a project declares to use the wheels
- templates: fill in the templates of files that users get: Dockerfiles, project files, pages
"""
