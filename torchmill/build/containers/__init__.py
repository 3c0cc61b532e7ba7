"""Container engines: images, commands, runs, and a watchdog.

- engine: the container engine of this machine, and whether its kernel runs programs of another
  architecture
- image: container images: the base image that fits, and building an image from a folder with a Dockerfile
- run: run one program in a container: the commands for each engine, and the run itself
- watch: A watchdog process that ends a container whose session was killed
"""
