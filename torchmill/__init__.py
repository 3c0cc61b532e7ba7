"""Build the PyTorch wheels that do not exist: python x CUDA x arch, from source, verified.

The ten wings and their laws are in docs/architecture.md.
"""

__version__: str


def __getattr__(name: str) -> str:
    # Only those who ask wait for git, or for importlib.metadata.
    if name == "__version__":
        from torchmill.core.suite_version import suite_version

        return suite_version()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
