"""Lay a wheel's files out as in a conda environment, and set their run paths."""

from __future__ import annotations

import csv
import hashlib
import io
import os
import re
import shutil
import struct
from collections.abc import Iterator
from importlib.metadata import EntryPoint, PathDistribution
from pathlib import Path

from torchmill.core.errors import DeliveryError
from torchmill.wheel.pack import elf, elf_edit, wheel_writer
from torchmill.wheel.pack.elf import DYNAMIC, RPATH, RUNPATH, open_elf
from torchmill.wheel.pack.elf_edit import ElfEdit
from torchmill.wheel.pack.staging import StagedWheel, unpack_wheel

ENTRY = "qQ"  # of the dynamic section of 64-bit files: tag and value


def apply_run_paths(staged: StagedWheel, lib: Path) -> tuple[str, ...]:
    """Give every library and program of an unpacked wheel its run path; return which, from site-packages.

    That is its own run path, and last the environment's `lib`. Raises BuildError for a damaged file,
    HostError where the disk refuses what is new.
    """
    libraries = [each for each in (staged.libraries, staged.root / f"{staged.package}.libs") if each.is_dir()]
    edited = []
    for path, facts in elf.dynamic_files(staged.root).items():
        if facts.needed:
            own = elf_edit.run_path(path, facts.rpath, True, staged.root, libraries)
            mode = path.stat().st_mode
            path.chmod(mode | 0o200)
            elf_edit.edit_file(ElfEdit(rpath=(*own, elf_edit.relative_to_origin(path, lib))), path)
            force_rpath(path)
            path.chmod(mode)
            edited.append(path.relative_to(staged.root).as_posix())
    return tuple(edited)


def force_rpath(path: Path) -> None:
    """Change the tag of a 64-bit file's run path, to one that LD_LIBRARY_PATH does not come before."""
    with open_elf(path) as image:
        table, order = image.first_segment(DYNAMIC), image.byte_order
        tags = [tag for tag, _ in image.dynamic]
    if table is None or RUNPATH not in tags:
        return
    with path.open("r+b") as file:
        file.seek(table.offset + tags.index(RUNPATH) * struct.calcsize(order + ENTRY))
        file.write(struct.pack(f"{order}q", RPATH))


GROUPS = ("console_scripts", "gui_scripts")
SCRIPT = re.compile(r"[\w.-]+")  # the name of one: it becomes a file in bin/
# Says to a shell and to Python alike that the interpreter beside the script runs it, wherever the environment
# lies: a path of the environment, as conda writes into such files when it installs them, is not needed then.
HEADER = """#!/bin/sh
'''exec' "$(dirname -- "$(realpath -- "$0")")/python" "$0" "$@"
' '''
"""
CALL = """import sys
from {module} import {name}

if __name__ == "__main__":
    sys.exit({call}())
"""
OF_PIP = ("REQUESTED", "direct_url.json", "RECORD.jws", "RECORD.p7s")  # about another installation


def site_packages(python: str) -> str:
    """Return where an environment of a Python has its packages, "3.13t" for free threads."""
    return f"lib/python{python}/site-packages"


def lay_out_wheel(wheel: Path, prefix: Path, python: str) -> StagedWheel:
    """Unpack a wheel below the empty folder `prefix`, everything where its installer would put it.

    Raises BuildError for an unsound wheel, DeliveryError for what would leave the prefix, HostError where the
    disk refuses.
    """
    site = prefix / site_packages(python)
    site.mkdir(parents=True)
    staged = unpack_wheel(wheel, site)
    for data in sorted(site.glob("*.data")):
        _spread(data, staged, prefix, python)
        shutil.rmtree(data)
    for entry in _entry_points(staged):
        _write_script(prefix / "bin" / entry.name, staged, entry)
    return staged


def register_with_conda(staged: StagedWheel, prefix: Path) -> None:
    """Say in .dist-info that conda installed it, and let RECORD tell of all files as they are now."""
    for name in OF_PIP:
        (staged.dist_info / name).unlink(missing_ok=True)
    (staged.dist_info / "INSTALLER").write_text("conda\n", encoding="utf-8")
    record = staged.dist_info / "RECORD"
    record.unlink(missing_ok=True)
    table = io.StringIO(newline="")
    rows = csv.writer(table, lineterminator="\n")
    for file in sorted(_files(prefix)):
        with file.open("rb") as data:
            digest = wheel_writer.record_digest(hashlib.file_digest(data, "sha256").digest())
        rows.writerow([Path(os.path.relpath(file, staged.root)).as_posix(), digest, file.stat().st_size])
    rows.writerow([record.relative_to(staged.root).as_posix(), "", ""])
    record.write_text(table.getvalue(), encoding="utf-8", newline="\n")


def _spread(data: Path, staged: StagedWheel, prefix: Path, python: str) -> None:
    """Move what stands below .data to where each kind of it belongs."""
    places = {
        "scripts": prefix / "bin",
        "data": prefix,
        "headers": prefix / "include" / f"python{python}" / staged.name,
        "purelib": staged.root,
        "platlib": staged.root,
    }
    for kind in sorted(data.iterdir()):
        if kind.name not in places:
            raise DeliveryError(
                f"{staged.raw_name}: {data.name}/{kind.name} is not a data scheme of wheels",
                code="invalid-wheel-layout",
            )
        for file in sorted(_files(kind)):
            place = places[kind.name] / file.relative_to(kind)
            if place.exists():
                raise DeliveryError(
                    f"{staged.raw_name}: it holds {place.relative_to(prefix)} twice: build it again",
                    code="invalid-wheel-layout",
                )
            place.parent.mkdir(parents=True, exist_ok=True)
            file.rename(place)
            if kind.name == "scripts":
                _adopt(place)


def _adopt(script: Path) -> None:
    """Let the environment's own interpreter run a script that begins with "#!python"."""
    first, _, rest = script.read_bytes().partition(b"\n")
    if first.startswith(b"#!python"):
        script.write_bytes(HEADER.encode() + rest)
    script.chmod(0o755)


def _entry_points(staged: StagedWheel) -> Iterator[EntryPoint]:
    for entry in PathDistribution(staged.dist_info).entry_points:
        if entry.group in GROUPS:
            if not SCRIPT.fullmatch(entry.name) or entry.name in {".", ".."}:
                raise DeliveryError(
                    f"{staged.raw_name}: the script name {entry.name!r} is not a valid file name: do not use it",
                    code="invalid-script",
                )
            yield entry


def _write_script(path: Path, staged: StagedWheel, entry: EntryPoint) -> None:
    match = re.fullmatch(r"(?P<module>[\w.]+)\s*:\s*(?P<call>[\w.]+)\s*(\[.*\])?", entry.value)
    if match is None:
        raise DeliveryError(
            f"{staged.raw_name}: the script {entry.name} calls '{entry.value}', which is not a function",
            code="invalid-script",
        )
    call = match["call"]
    body = CALL.format(module=match["module"], name=call.partition(".")[0], call=call)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(HEADER + body, encoding="utf-8", newline="\n")
    path.chmod(0o755)


def _files(folder: Path) -> Iterator[Path]:
    for inside, _, names in os.walk(folder):
        yield from (Path(inside, name) for name in names)
