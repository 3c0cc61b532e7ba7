"""Which C++ files of extensions parse against the headers of which torch.

To parse is weaker than to build: a compiler accepted the files, types and templates included, but
made no code of them. `tools/syntax` finds it out, and no build counts as tried because of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from torchmill.config.field_types import no_entries
from torchmill.config.release import Release

FILE = "parsed.toml"  # in build_configs/


@dataclass(frozen=True, slots=True)
class ParsedSource:
    """The C++ files of one release of an extension, and the torches whose headers they take."""

    package: str
    release: str
    variant: str  # "cpu", "cu130": which files and flags its setup.py chooses
    python: str  # whose headers were there
    compiler: str  # "g++ 12.2.0"
    date: str  # of the parse
    files: int  # how many C++ files there are
    left_out: int  # files in other languages, which were not parsed
    accepted: tuple[str, ...] = ()  # releases of torch
    # Release of torch -> the first error, as "file:line: text".
    refused: Mapping[str, str] = no_entries()


def parsed_with(sources: Iterable[ParsedSource], release: Release) -> Iterator[ParsedSource]:
    """Yield the sources that are of an extension's release, and were parsed with its torch.

    Whether the torch's headers took the files says each of them: `accepted` or `refused` has it.
    """
    for source in sources:
        if (source.package, source.release) != (release.package, release.version):
            continue
        if release.torch in source.accepted or release.torch in source.refused:
            yield source
