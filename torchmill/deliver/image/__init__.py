"""`invoke image`: Dockerfiles that follow from the facts, and the images that an engine builds of them."""
