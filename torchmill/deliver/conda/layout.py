"""Lay out a wheel in an environment's prefix, as conda installs it."""

import os
import re
import shutil
from collections.abc import Iterator, Sequence
from importlib.metadata import EntryPoint, PathDistribution
from pathlib import Path

from millpress import elf, elf_edit, record_file
from millpress.elf_edit import ElfEdit
from millpress.staging import StagedWheel, stage_wheel

from torchmill.core.atomic_writes import write_atomically
from torchmill.core.digests import hash_file
from torchmill.core.errors import DeliveryError
from torchmill.deliver import libtorch

# The files in .dist-info that setuptools takes for licences.
_LICENSES = ("LICEN[CS]E*", "COPYING*", "NOTICE*", "AUTHORS*", "licenses/**/*")

GROUPS = ("console_scripts", "gui_scripts")  # the entry points that installers make scripts of
SCRIPT = re.compile(r"[\w.-]+")  # the name of a script, which becomes a file in bin/

# The beginning of a script. A shell reads it as a command that starts the interpreter beside the
# script; to that interpreter, the same lines are a string. So the script runs wherever the
# environment lies. A script with the path of its environment in it would be a file that conda has
# to rewrite when it installs the package.
HEADER = Path(__file__).with_name("launcher.txt").read_text("utf-8")
CALL = Path(__file__).with_name("entry_point.txt").read_text("utf-8")

# Files in .dist-info about an installation by pip, or signatures of a RECORD that is rewritten.
OF_PIP = ("REQUESTED", "direct_url.json", "RECORD.jws", "RECORD.p7s")


def lay_out_wheel(wheel: Path, prefix: Path, python: str) -> StagedWheel:
    """Unpack a wheel below the empty folder `prefix`, with every file where an installer puts it.

    `python` is the Python of the environment, such as "3.10", or "3.13t" without the GIL. Raises
    InputError for an unsound wheel, DeliveryError for files that have no place in an environment,
    OSError if the disk refuses.
    """
    site_packages = prefix / f"lib/python{python}/site-packages"
    site_packages.mkdir(parents=True)
    staged = stage_wheel(wheel, site_packages)
    for data in sorted(site_packages.glob("*.data")):
        _spread_data(data, staged, prefix, python)
        shutil.rmtree(data)
    for entry_point in PathDistribution(staged.dist_info).entry_points:
        if entry_point.group in GROUPS:
            _write_script(prefix / "bin" / entry_point.name, staged, entry_point)
    return staged


def _spread_data(data: Path, staged: StagedWheel, prefix: Path, python: str) -> None:
    """Move the files below a wheel's .data folder to the places of their kinds.

    https://packaging.python.org/specifications/binary-distribution-format/#the-data-directory
    """
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
        for file in sorted(kind.rglob("*")):
            if not file.is_file():
                continue
            target = places[kind.name] / file.relative_to(kind)
            if target.exists():
                name = target.relative_to(prefix)
                raise DeliveryError(
                    f"{staged.raw_name}: it holds {name} twice: build it again",
                    code="invalid-wheel-layout",
                )
            target.parent.mkdir(parents=True, exist_ok=True)
            file.rename(target)
            if kind.name == "scripts":
                _adapt_script(target)


def _adapt_script(script: Path) -> None:
    """Make a script that begins with "#!python" run by the environment's own interpreter."""
    first_line, _, rest = script.read_bytes().partition(b"\n")
    if first_line.startswith(b"#!python"):
        script.write_bytes(HEADER.encode() + rest)
    script.chmod(0o755)


def _write_script(path: Path, staged: StagedWheel, entry_point: EntryPoint) -> None:
    """Write the script of an entry point. Raises DeliveryError for an invalid one."""
    if not SCRIPT.fullmatch(entry_point.name) or entry_point.name in {".", ".."}:
        raise DeliveryError(
            f"{staged.raw_name}: the script name {entry_point.name!r} is not a valid file name: do "
            "not use it",
            code="invalid-script",
        )
    match = EntryPoint.pattern.match(entry_point.value)
    if match is None or not match["attr"]:
        raise DeliveryError(
            f"{staged.raw_name}: the script {entry_point.name} calls '{entry_point.value}', which "
            "is not a function",
            code="invalid-script",
        )
    call = match["attr"]  # "main", or "App.main"
    imported = call.partition(".")[0]
    body = CALL.format(module=match["module"], name=imported, call=call)
    write_atomically(path, HEADER + body, 0o755)


def apply_run_paths(staged: StagedWheel, lib: Path) -> None:
    """Give every library and program of an unpacked wheel its run path.

    These are the entries that the file has in the wheel, and `lib` at the end: the environment's
    folder of libraries. Raises InputError for a damaged file, OSError if the disk refuses.
    """
    candidates = (staged.libraries, staged.root / f"{staged.package}.libs")
    libraries = [folder for folder in candidates if folder.is_dir()]
    # The run path is forced (DT_RPATH): the environment's libraries come before LD_LIBRARY_PATH.
    for path, info in elf.dynamic_files(staged.root).items():
        if info.needed:
            run_path = elf_edit.run_path(path, info.rpath, True, staged.root, libraries)
            entries = (*run_path, elf_edit.relative_to_origin(path, lib))
            elf_edit.edit_file(ElfEdit(rpath=entries, forced=True), path)


def register_with_conda(staged: StagedWheel, prefix: Path) -> None:
    """Write into .dist-info that conda installed the package, and rewrite RECORD for all files."""
    for name in OF_PIP:
        (staged.dist_info / name).unlink(missing_ok=True)
    (staged.dist_info / "INSTALLER").write_text("conda\n", encoding="utf-8")
    # RECORD lists itself last and without a digest, so it must not be among the files.
    record = staged.dist_info / "RECORD"
    record.unlink(missing_ok=True)
    rows: list[Sequence[object]] = []
    for file in sorted(prefix.rglob("*")):
        if file.is_file():
            digest = record_file.record_digest(bytes.fromhex(hash_file(file)))
            name = Path(os.path.relpath(file, staged.root)).as_posix()
            rows.append((name, digest, file.stat().st_size))
    rows.append((record.relative_to(staged.root).as_posix(), "", ""))
    record.write_text(record_file.format_record(rows), encoding="utf-8", newline="\n")


def license_texts(staged: StagedWheel) -> Iterator[tuple[str, bytes]]:
    """Yield the texts of a wheel's licences, by their paths in a package's folder of licences."""
    for pattern in _LICENSES:
        for path in sorted(staged.dist_info.glob(pattern)):
            if path.is_file():
                name = path.relative_to(staged.dist_info).as_posix()
                yield name.removeprefix("licenses/"), path.read_bytes()


def lay_out_libtorch(staged: StagedWheel, prefix: Path) -> None:
    """Move the files for C++ to where CMake and compilers look for them in an environment."""
    for name, path in libtorch.cxx_files(staged.root / staged.package).items():
        if name.startswith("include/pybind11/"):  # for Python, and a package of its own in conda
            continue
        (prefix / name).parent.mkdir(parents=True, exist_ok=True)
        path.rename(prefix / name)
    for path, info in elf.dynamic_files(prefix).items():
        if info.needed:
            elf_edit.edit_file(ElfEdit(rpath=("$ORIGIN",), forced=True), path)
