"""The words of the house as frozen values; nothing here reads a file or asks the machine."""

from torchmill.model.builds import Artifact, Build, Case, Command, Options, Plan, Source
from torchmill.model.costs import (
    Assumed,
    Compression,
    Linking,
    LinkReport,
    Peak,
    Range,
    Run,
    StaticLibrary,
)
from torchmill.model.images import BaseImage, Companion, Images
from torchmill.model.known import (
    Arch,
    ArchName,
    Capability,
    Cause,
    Cuda,
    Elsewhere,
    Facts,
    KnownUnit,
    Release,
    Toolkit,
)
from torchmill.model.machines import Compiler, Gpu, Host, Room
from torchmill.model.packages import Edition, Package, Rule, When
from torchmill.model.provision import Part, Piece, ToolkitSource

__all__ = [
    "Arch",
    "ArchName",
    "Artifact",
    "Assumed",
    "BaseImage",
    "Build",
    "Capability",
    "Case",
    "Cause",
    "Command",
    "Companion",
    "Compiler",
    "Compression",
    "Cuda",
    "Edition",
    "Elsewhere",
    "Facts",
    "Gpu",
    "Host",
    "Images",
    "KnownUnit",
    "LinkReport",
    "Linking",
    "Options",
    "Package",
    "Part",
    "Peak",
    "Piece",
    "Plan",
    "Range",
    "Release",
    "Room",
    "Rule",
    "Run",
    "Source",
    "StaticLibrary",
    "Toolkit",
    "ToolkitSource",
    "When",
]
