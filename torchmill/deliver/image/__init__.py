"""Images of `invoke image`: builders, runtime images and dev containers, as Dockerfiles."""
