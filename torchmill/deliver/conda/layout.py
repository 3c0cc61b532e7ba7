"""Lay out a wheel in an environment's prefix, as conda installs it.

A prefix is the folder of an environment, with bin/ and lib/ in it.
"""

import os
import re
import shutil
from collections.abc import Sequence
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

SCRIPT_GROUPS = (
    "console_scripts",
    "gui_scripts",
)  # the entry points that installers make scripts of
SCRIPT_NAME = re.compile(r"[\w.-]+")  # the name of a script, which becomes a file in bin/

# The beginning of a script. A shell reads it as a command that starts the interpreter beside the
# script; to that interpreter, the same lines are a string. So the script runs wherever the
# environment lies. A script with the path of its environment in it would be a file that conda has
# to rewrite when it installs the package.
LAUNCHER = Path(__file__).with_name("launcher.txt").read_text("utf-8")
ENTRY_POINT_BODY = Path(__file__).with_name("entry_point.txt").read_text("utf-8")
# Comments and empty lines at the beginning of a script, and the quote of its docstring, if any.
_SCRIPT_START = re.compile(
    rb"(?P<comments>(?:[ \t]*(?:#[^\n]*)?\r?\n)*)(?P<docstring>[rRuU]?[\"'])?"
)

# Files in .dist-info about an installation by pip, or signatures of a RECORD that is rewritten.
PIP_FILES = ("REQUESTED", "direct_url.json", "RECORD.jws", "RECORD.p7s")


def lay_out_wheel(wheel: Path, prefix: Path, python: str) -> StagedWheel:
    """Unpack a wheel below the empty folder `prefix`, with every file where an installer puts it.

    `python` is the Python of the environment, such as "3.10", or "3.13t" without the GIL. Raises
    InputError for an unsound wheel, DeliveryError for files that have no place in an environment,
    OSError if the disk refuses.
    """
    site_packages = prefix / f"lib/python{python}/site-packages"
    site_packages.mkdir(parents=True)
    staged = stage_wheel(wheel, site_packages)
    # pip, too, takes every folder of this name for the wheel's .data folder.
    for data in sorted(site_packages.glob("*.data")):
        _spread_data(data, staged, prefix, python)
        shutil.rmtree(data)
    for entry_point in PathDistribution(staged.dist_info).entry_points:
        if entry_point.group in SCRIPT_GROUPS:
            _write_script(prefix, staged, entry_point)
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
                raise _doubled_file(staged, target.relative_to(prefix))
            target.parent.mkdir(parents=True, exist_ok=True)
            file.rename(target)
            if kind.name == "scripts":
                _adapt_script(target)


def _doubled_file(staged: StagedWheel, name: Path) -> DeliveryError:
    """Return the error that two files of a wheel have the same place in an environment."""
    return DeliveryError(
        f"{staged.raw_name}: two of its files would be installed as {name}: build the wheel again",
        code="invalid-wheel-layout",
    )


def _adapt_script(script: Path) -> None:
    """Make a file in bin/ executable, and run Python's scripts by the environment's interpreter.

    These begin with "#!python". Arguments that come after it are dropped, as pip drops them.
    """
    first_line, _, rest = script.read_bytes().partition(b"\n")
    if first_line.startswith(b"#!python"):
        script.write_bytes(_with_launcher(rest))
    script.chmod(0o755)


def _with_launcher(rest: bytes) -> bytes:
    """Return a script of Python that the interpreter beside it runs (see LAUNCHER).

    `rest` is the script without its first line. The launcher is put behind the comments at its
    beginning.
    """
    shell_line, _, launcher = LAUNCHER.encode().partition(b"\n")
    start = _SCRIPT_START.match(rest)
    comments = start["comments"] if start else b""
    # Python looks for the encoding in the first two lines, so comments go before the launcher.
    # https://docs.python.org/3/reference/lexical_analysis.html#encoding-declarations
    # To a shell, they are comments too.
    if start and start["docstring"]:
        # `from __future__` may come only after a single docstring. Two strings on one line are one.
        launcher = launcher.rstrip(b"\n") + b" "
    return shell_line + b"\n" + comments + launcher + rest[len(comments) :]


def _write_script(prefix: Path, staged: StagedWheel, entry_point: EntryPoint) -> None:
    """Write the script of an entry point.

    Raises DeliveryError for an invalid one, and for one that has the name of another script.
    """
    if not SCRIPT_NAME.fullmatch(entry_point.name) or entry_point.name in {".", ".."}:
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
    body = ENTRY_POINT_BODY.format(module=match["module"], name=imported, call=call)
    path = prefix / "bin" / entry_point.name
    if path.exists():
        raise _doubled_file(staged, path.relative_to(prefix))
    write_atomically(path, LAUNCHER + body, 0o755)


def apply_run_paths(staged: StagedWheel, prefix: Path) -> None:
    """Give every library and program of a wheel in a prefix its run path.

    These are the entries that the file has in the wheel, and at the end the environment's folder of
    libraries. Raises InputError for a damaged file, OSError if the disk refuses.
    """
    candidates = (staged.libraries, staged.root / f"{staged.package}.libs")
    libraries = [folder for folder in candidates if folder.is_dir()]
    for path, info in elf.dynamic_files(prefix).items():
        if not info.needed:
            continue
        # The entries of a file that was moved out of a .data folder are relative to its old place,
        # so they lead nowhere now.
        old_entries = info.rpath if path.is_relative_to(staged.root) else ()
        run_path = elf_edit.run_path(
            path, old_entries, uses_wheel=True, root=staged.root, libraries=libraries
        )
        entries = (*run_path, elf_edit.relative_to_origin(path, prefix / "lib"))
        # The run path is forced (DT_RPATH): the environment's libraries come before
        # LD_LIBRARY_PATH.
        elf_edit.edit_file(ElfEdit(rpath=entries, forced=True), path)


def register_with_conda(staged: StagedWheel, prefix: Path) -> None:
    """Write into .dist-info that conda installed the package, and rewrite RECORD for all files."""
    for name in PIP_FILES:
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


def license_texts(staged: StagedWheel) -> dict[str, bytes]:
    """Return the texts of a wheel's licences, by their paths in a package's folder of licences."""
    texts: dict[str, bytes] = {}
    for pattern in _LICENSES:
        for path in sorted(staged.dist_info.glob(pattern)):
            if not path.is_file():
                continue
            text = path.read_bytes()
            name = path.relative_to(staged.dist_info).as_posix()
            short_name = name.removeprefix("licenses/")
            # A wheel may have both LICENSE and licenses/LICENSE.
            if texts.get(short_name, text) != text:
                short_name = name
            texts[short_name] = text
    return texts


def lay_out_libtorch(staged: StagedWheel, prefix: Path) -> None:
    """Move the files for C++ to where CMake and compilers look for them in an environment.

    They leave the wheel that `lay_out_wheel` unpacked, and `prefix` is the empty folder of another
    package. Each library finds those beside it.
    """
    for name, path in libtorch.cxx_files(staged.root / staged.package).items():
        if name.startswith("include/pybind11/"):  # for Python, and a package of its own in conda
            continue
        (prefix / name).parent.mkdir(parents=True, exist_ok=True)
        path.rename(prefix / name)
    # All libraries of libtorch are in lib/, and it has no programs.
    for path, info in elf.dynamic_files(prefix).items():
        if info.needed:
            elf_edit.edit_file(ElfEdit(rpath=("$ORIGIN",), forced=True), path)
