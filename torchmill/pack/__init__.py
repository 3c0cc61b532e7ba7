"""From the wheel that the build made to the one people install: libraries, run paths, tags, RECORD."""
