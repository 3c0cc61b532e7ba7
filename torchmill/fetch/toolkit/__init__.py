"""CUDA toolkits, libraries and host compilers, without root.

- conda: CUDA toolkits from conda channels, resolved and unpacked by py-rattler
- debian: CUDA toolkits and compilers from Debian's and Ubuntu's packages, unpacked without installing
- layout: what an unpacked toolkit still needs: links, a stub of the driver library, a compiler that works
- magma: MAGMA from a folder or an archive, and what code its library holds
- provision: install a toolkit, library or compiler into the user's cache, or complete an incomplete
  toolkit
- pypi: CUDA toolkits and libraries from NVIDIA's wheels on the package index
- request: what is requested of a toolkit provider, what it answers, and which providers may have it
- store: place downloads and toolkits in the user's cache; each appears whole
"""
