"""Container engines: images, commands, runs; builds for another architecture."""
