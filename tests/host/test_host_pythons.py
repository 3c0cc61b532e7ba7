"""Interpreters that run and cannot be built for: of another machine, or behind a shim that fails."""

import os
import platform
import struct
import sys
from pathlib import Path

import pytest

from tests.support.machines import file, made_up_programs, program
from torchmill.host import interpreters, native

ELF = b"\x7fELF\x02\x01\x01" + bytes(9) + struct.pack("<HH", 2, 0xB7) + bytes(44)
MACH = {"x86_64": 0x01000007, "arm64": 0x0100000C}


def mach(machine: str) -> bytes:
    return struct.pack("<II", 0xFEEDFACF, MACH[machine]) + bytes(24)


def universal(*names: str) -> bytes:
    entries = b"".join(struct.pack(">IIIII", MACH[name], 0, 0, 0, 0) for name in names)
    return struct.pack(">II", 0xCAFEBABE, len(names)) + entries + bytes(16)


@pytest.mark.parametrize(
    ("content", "machines"),
    [
        (ELF, {"aarch64"}),
        (mach("x86_64"), {"x86_64"}),
        (mach("arm64"), {"arm64"}),
        (universal("x86_64", "arm64"), {"x86_64", "arm64"}),
        (struct.pack(">II", 0xCAFEBABE, 65) + bytes(64), set()),  # Java
        (b"#!/bin/sh\nexec python3\n" + bytes(20), set()),
        (b"MZ", set()),
    ],
)
def test_an_executable_tells_its_machine_unrun(tmp_path: Path, content: bytes, machines: set[str]) -> None:
    path = tmp_path / "python"
    path.write_bytes(content)
    assert native.machines_of_binary(path) == machines


def test_no_file_is_for_no_machine(tmp_path: Path) -> None:
    assert native.machines_of_binary(tmp_path / "absent") == set()


@pytest.mark.skipif(sys.platform != "linux", reason="an ELF file is wanted")
def test_this_interpreter_is_for_this_machine() -> None:
    assert native.machines_of_binary(Path(sys.executable)) == {platform.machine()}


def test_only_what_cannot_run_natively_is_translated(tmp_path: Path) -> None:
    places = {}
    for version, content in {
        "3.9": mach("x86_64"),
        "3.10": universal("x86_64", "arm64"),
        "3.11": mach("arm64"),
        "3.12": b"#!/bin/sh\n" + bytes(40),
    }.items():
        places[version] = tmp_path / version
        places[version].write_bytes(content)
    assert interpreters.translated_interpreters(places, "arm64") == {"3.9": places["3.9"]}


@made_up_programs
def test_a_shim_runs_what_pyenv_has_selected(tmp_path: Path) -> None:
    base = tmp_path / ".pyenv"
    places = {}
    for version, full in {"3.9": "3.9.18", "3.10": "3.10.13"}.items():
        program(base / "shims", f"python{version}")
        places[version] = program(base / f"versions/{full}/bin", f"python{version}")
    file(base / "version", "3.9.18\n")
    environ = {"PATH": os.pathsep.join([str(base / "shims"), "/usr/bin"])}
    shim = base / "shims/python3.10"
    assert interpreters.shadowing_shims(places, environ, tmp_path) == {"3.10": shim}
    chosen = environ | {"PYENV_VERSION": "3.10.13:3.9.18"}
    assert interpreters.shadowing_shims(places, chosen, tmp_path) == {}
    before = {"PATH": f"{base}/versions/3.10.13/bin:{environ['PATH']}"}
    assert interpreters.shadowing_shims(places, before, tmp_path) == {}
    moved = {"PATH": environ["PATH"], "PYENV_ROOT": str(base)}
    assert interpreters.shadowing_shims(places, moved, Path("/nowhere")) == {"3.10": shim}
    (base / "version").unlink()
    assert set(interpreters.shadowing_shims(places, environ, tmp_path)) == {"3.9", "3.10"}
