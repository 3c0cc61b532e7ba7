"""Read the compute capabilities that torch's wheels list in one of their libraries."""

import re
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from tools.remote_wheel import READERS, RemoteWheel, cached_file, read_member
from tools.upstream_wheels import reference_wheels
from torchmill.core.console import ProgressBar
from torchmill.fetch.download import http_session
from torchmill.fetch.package_index import IndexFile

LIBRARY = "libtorch_python.so"  # contains the list as text, from torch 1.6 on
_LIST = re.compile(rb"(?:(?:sm|compute)_\d+[af]? ?){2,}")
_FLAG = re.compile(r"(sm|compute)_(\d+)(\d)([af]?)")


def with_capabilities(
    wheels: Sequence[RemoteWheel], files: Iterable[IndexFile], cache: Path, bar: ProgressBar
) -> tuple[RemoteWheel, ...]:
    """Return the wheels; one CUDA wheel of each release has its capabilities.

    That is the wheel whose library sizes are recorded. Results stay in `cache`. Raises
    NetworkError.
    """
    files_by_name = {file.name: file for file in files}
    by_version: dict[str, list[RemoteWheel]] = {}
    for wheel in wheels:
        by_version.setdefault(wheel.version, []).append(wheel)
    chosen: list[RemoteWheel] = []
    for group in by_version.values():
        references = reference_wheels(group)
        if references and references[0].cuda and LIBRARY in references[0].libraries:
            chosen.append(references[0])

    def read(wheel: RemoteWheel) -> tuple[str, ...]:
        return _read_capabilities(files_by_name[wheel.name], cache)

    completed: dict[str, RemoteWheel] = {}
    with ThreadPoolExecutor(READERS) as pool:
        for wheel, capabilities in zip(chosen, pool.map(read, chosen), strict=True):
            completed[wheel.name] = replace(wheel, capabilities=capabilities)
            bar.update(len(completed), len(chosen), "lists of compute capabilities")
    return tuple(completed.get(wheel.name, wheel) for wheel in wheels)


def _read_capabilities(file: IndexFile, cache: Path) -> tuple[str, ...]:
    """Return the capabilities of one wheel, from the cache or the index."""
    path = cached_file(cache, file, "capabilities")
    if not path.exists():
        package = file.name.partition("-")[0]
        with http_session() as session:
            library = read_member(file, f"{package}/lib/{LIBRARY}", session)
        match = _LIST.search(library)
        part = path.with_suffix(".part")
        part.write_text(match[0].decode() if match else "", encoding="utf-8")
        part.rename(path)
    return _parse_flags(path.read_text(encoding="utf-8"))


def _parse_flags(flags: str) -> tuple[str, ...]:
    """Return the capabilities as release files write them: "sm_86 compute_120" is 8.6, 12.0+PTX."""
    has_ptx: dict[str, bool] = {}
    for kind, major, minor, suffix in _FLAG.findall(flags):
        name = f"{major}.{minor}{suffix}"
        has_ptx[name] = has_ptx.get(name, False) or kind == "compute"
    return tuple(f"{name}+PTX" if ptx else name for name, ptx in has_ptx.items())
