"""Publishing wheels; nothing is ever replaced.

- targets: choose the target that --to names
- upload_set: the files to publish, and the interface of a target
- folder: a folder of this machine as a target
- index: a package index as a target
- github: the releases of a GitHub repository as a target
- bucket: a bucket of S3 as a target
- twine_upload: twine's upload with a time limit, in a process of its own
"""
