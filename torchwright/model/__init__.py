"""The words of the house as frozen values; nothing here reads a file or asks the machine."""

from torchwright.model.builds import Artifact, Build, Case, Command, Options, Plan, Source
from torchwright.model.known import (
    Arch,
    Capability,
    Cause,
    Cuda,
    Facts,
    Package,
    Release,
    Rule,
    Run,
    Toolkit,
    When,
)
from torchwright.model.machines import Compiler, Gpu, Host

__all__ = [
    "Arch",
    "Artifact",
    "Build",
    "Capability",
    "Case",
    "Cause",
    "Command",
    "Compiler",
    "Cuda",
    "Facts",
    "Gpu",
    "Host",
    "Options",
    "Package",
    "Plan",
    "Release",
    "Rule",
    "Run",
    "Source",
    "Toolkit",
    "When",
]
