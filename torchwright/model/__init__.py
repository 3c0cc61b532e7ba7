"""The words of the house as frozen values; nothing here reads a file or asks the machine."""

from torchwright.model.builds import Artifact, Build, Case, Command, Options, Plan, Source
from torchwright.model.costs import (
    Assumed,
    Compression,
    Linking,
    LinkReport,
    Peak,
    Range,
    Run,
    StaticLibrary,
)
from torchwright.model.known import (
    Arch,
    ArchName,
    Capability,
    Cause,
    Cuda,
    Facts,
    Package,
    Release,
    Rule,
    Toolkit,
    When,
)
from torchwright.model.machines import Compiler, Gpu, Host

__all__ = [
    "Arch",
    "ArchName",
    "Artifact",
    "Assumed",
    "Build",
    "Capability",
    "Case",
    "Cause",
    "Command",
    "Compiler",
    "Compression",
    "Cuda",
    "Facts",
    "Gpu",
    "Host",
    "LinkReport",
    "Linking",
    "Options",
    "Package",
    "Peak",
    "Plan",
    "Range",
    "Release",
    "Rule",
    "Run",
    "Source",
    "StaticLibrary",
    "Toolkit",
    "When",
]
