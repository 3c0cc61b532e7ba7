"""Types of fields whose texts have a certain form; the reader of facts refuses any other."""

from __future__ import annotations

from dataclasses import field
from functools import partial
from typing import Any

# Returns a new `dataclasses.field` whose default is an empty mapping, another one for each value:
# a dataclass refuses a mutable default.
no_entries: Any = partial(field, default_factory=dict)

# toml_reader.py finds the check of a field by these names in its annotation.
VersionText = str  # of PEP 440
DateText = str  # of ISO 8601: "2022-12-15"
Commit = str  # 40 hexadecimal digits
Pythons = tuple[str, ...]  # "3.10", "3.13t"
Capabilities = tuple[str, ...]  # "8.6"
Targets = tuple[str, ...]  # "8.6", "9.0a"
Requirements = tuple[str, ...]  # of PEP 508: "numpy<2"
Share = float  # above 0, at most 1
Positive = int  # 1 or more
PlatformTemplate = str  # with {glibc} and {macos}
VariantTemplate = str  # with {variant}
InstallTemplate = str  # with {file}, {version}, {release}, {torch}, {variant}
VersionTemplate = str  # with {version}, {torch}, {requires}, {jobs}
CompilerTemplate = str  # with {major}
WheelNames = tuple[str, ...]  # of files: "spam-1.0-py3-none-any.whl"
Addresses = tuple[str, ...]  # that begin with https://
