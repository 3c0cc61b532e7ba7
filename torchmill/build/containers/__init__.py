"""Container engines: images, commands, runs, and a watchdog."""
