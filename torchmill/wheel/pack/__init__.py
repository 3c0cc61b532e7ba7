"""From the raw wheel to the delivered one: stage, repair, set tags and metadata, write the zip archive."""
