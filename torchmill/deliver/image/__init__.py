"""Dockerfiles of `invoke image`.

- builder: dockerfiles of builders and dev containers
- dockerfile: blocks of Dockerfiles, and the system packages and Pythons that go into them; no block needs
  BuildKit
- folder: the folder of an image: written whole, and never over somebody else's files
- request: what image is wanted: what a user asked for, checked against the facts
- runtime: dockerfiles of small runtime images, and the wheels that go into them
"""
