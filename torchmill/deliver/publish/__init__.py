"""Publishing wheels; nothing is ever replaced.

- bucket: A bucket of S3, or of a store that speaks like it: boto3 brings files there
- folder: A folder, such as one that a web server shows or `invoke index` reads
- github: upload wheels to a GitHub release by its REST API
- index: A package index that takes uploads: twine brings them, with its own configuration
- targets: where wheels can be published, by the argument of --to
- upload_set: the files to publish, and which of them the target already has
"""
