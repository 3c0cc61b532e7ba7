"""The compute capabilities that a wheel has code for, as torch itself tells them (get_arch_list)."""

import re
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import requests

from torchmill.bars import Bar
from torchmill.upstream import said
from torchmill.upstream.index import File
from torchmill.upstream.wheels import READERS, Wheel, member

LIBRARY = "libtorch_python.so"  # holds the list as text, from torch 1.6 on
_LIST = re.compile(rb"(?:(?:sm|compute)_\d+[af]? ?){2,}")


def added(wheels: Sequence[Wheel], files: Iterable[File], cache: Path, bar: Bar) -> tuple[Wheel, ...]:
    """Return the wheels; one CUDA wheel of each release, the reference of its sizes, with its capabilities.

    What was read stays in `cache`. Raises NetworkError.
    """
    by_name = {file.name: file for file in files}
    releases = {wheel.version: [one for one in wheels if one.version == wheel.version] for wheel in wheels}
    firsts = [one for group in releases.values() for one in said.reference(group)[:1]]
    asked = [wheel for wheel in firsts if wheel.cuda and LIBRARY in wheel.libraries]
    found: dict[str, Wheel] = {}
    with ThreadPoolExecutor(READERS) as pool:
        told = pool.map(lambda wheel: _capabilities(by_name[wheel.name], cache), asked)
        for done, (wheel, capabilities) in enumerate(zip(asked, told, strict=True), 1):
            found[wheel.name] = replace(wheel, capabilities=capabilities)
            bar.update(done, len(asked), "lists of compute capabilities")
    return tuple(found.get(wheel.name, wheel) for wheel in wheels)


def _capabilities(file: File, cache: Path) -> tuple[str, ...]:
    known = cache / f"{file.name}.{file.digest}.capabilities"
    if not known.exists():
        with requests.Session() as session:
            library = member(file, f"{file.name.partition('-')[0]}/lib/{LIBRARY}", session)
        match = _LIST.search(library)
        half = known.with_suffix(".part")
        half.write_text(match[0].decode() if match else "", encoding="utf-8")
        half.rename(known)
    return _named(known.read_text(encoding="utf-8"))


def _named(flags: str) -> tuple[str, ...]:
    """Return what the list says as the release files do: PTX, which it calls compute_120, is "12.0+PTX"."""
    found = re.findall(r"(sm|compute)_(\d+)(\d)([af]?)", flags)
    intermediate = {f"{major}.{minor}{suffix}" for kind, major, minor, suffix in found if kind == "compute"}
    names = dict.fromkeys(f"{major}.{minor}{suffix}" for _, major, minor, suffix in found)
    return tuple(f"{name}+PTX" if name in intermediate else name for name in names)
