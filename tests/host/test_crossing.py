"""What a machine has to build for another arch."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.machines import file, program
from torchmill.host import crossing, native
from torchmill.host.crossing import crossing_view, measure_crossings
from torchmill.host.host import (
    Compiler,
    Host,
    HostCompilers,
    HostCrossing,
    HostPrograms,
    HostResources,
    HostToolkits,
)
from torchmill.host.provisioned import RECORD

# The first bytes of a program for aarch64: the magic, 64 bits, little endian, and e_machine at 18.
AARCH64_PROGRAM = b"\x7fELF\x02\x01" + bytes(12) + b"\xb7\x00" + bytes(44)
X86_PROGRAM = b"\x7fELF\x02\x01" + bytes(12) + b"\x3e\x00" + bytes(44)


@pytest.fixture(autouse=True)
def on_x86_64(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the tests run as on x86_64 with Linux, wherever they do."""
    monkeypatch.setattr(native, "native_arch", lambda: "x86_64")
    monkeypatch.setattr(native, "native_system", lambda: "linux")


def answers(**texts: str) -> Callable[..., str]:
    """Return a runner of programs; the keys are the last options of commands."""

    def run(words: list[str]) -> str:
        return texts.get(words[-1].lstrip("-").replace("-", "_").partition("=")[0], "")

    return run


def toolkit(cache: Path, name: str, arch: str, programs_of: str) -> Path:
    """Put the record of a toolkit into a cache, and return its folder."""
    record = {
        "kind": "toolkit",
        "version": "13.0",
        "full": "13.0",
        "provider": "pypi",
        "pieces": [],
        "completes": "/usr/local/cuda",
        "programs_of": programs_of,
    }
    home = cache / "toolkits" / f"{name}-{arch}"
    file(home / RECORD, json.dumps(record))
    return home


def measure(tmp_path: Path, run: Callable[..., str], **environ: str) -> dict[str, HostCrossing]:
    """Return the crossings of a machine whose files and programs lie below a folder."""
    variables = {"PATH": str(tmp_path / "bin"), **environ}
    return measure_crossings(
        variables, tmp_path / "root", tmp_path / "home", tmp_path / "cache", run
    )


def test_a_machine_with_nothing_for_others_has_no_crossing(tmp_path: Path) -> None:
    program(tmp_path / "bin", "g++", "g++")
    assert measure(tmp_path, answers()) == {}


def test_everything_for_another_arch_is_found(tmp_path: Path) -> None:
    for name in ("aarch64-linux-gnu-g++-12", "aarch64-linux-gnu-gcc-12", "qemu-aarch64-static"):
        program(tmp_path / "bin", name, "")
    system = tmp_path / "root/usr/aarch64-linux-gnu"
    file(system / "lib/ld-linux-aarch64.so.1")
    library = file(system / "lib/libc.so.6", "GNU C Library stable release version 2.36.\n")
    home = toolkit(tmp_path / "cache", "13.0-crossing-1a", "aarch64", "x86_64")
    toolkit(tmp_path / "cache", "13.0-of-an-arm-machine", "aarch64", "")
    python = (
        tmp_path / "home/.local/share/uv/python/cpython-3.12.4-linux-aarch64-gnu/bin/python3.12"
    )
    file(python)
    run = answers(
        version="Free Software Foundation", dumpversion="12.2.0", print_file_name=str(library)
    )
    assert measure(tmp_path, run) == {
        "aarch64": HostCrossing(
            compilers={"aarch64-linux-gnu-g++-12": Compiler("gcc", "12.2.0")},
            glibc="2.36",
            toolkits={"13.0": str(home)},
            emulator=str(tmp_path / "bin/qemu-aarch64-static"),
            system=str(system),
            interpreters={"3.12": str(python)},
        )
    }


def test_a_named_system_goes_first_if_it_is_whole(tmp_path: Path) -> None:
    file(tmp_path / "root/usr/aarch64-linux-gnu/lib/ld-linux-aarch64.so.1")
    named = tmp_path / "named"
    python = named / "usr/bin/python3.11"
    python.parent.mkdir(parents=True)
    python.write_bytes(AARCH64_PROGRAM)
    (named / "usr/bin/python3.12").write_bytes(X86_PROGRAM)
    found = measure(tmp_path, answers(), TORCHMILL_SYSROOT=str(named))["aarch64"]
    assert found.interpreters == {"3.11": str(python)}, "the other one is of this machine"
    assert found.system == str(tmp_path / "root/usr/aarch64-linux-gnu"), "it has no loader"
    file(named / "lib/ld-linux-aarch64.so.1")
    found = measure(tmp_path, answers(), TORCHMILL_SYSROOT=str(named))["aarch64"]
    assert found.system == str(named)


def test_other_systems_than_linux_cross_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(tmp_path / "bin", "qemu-aarch64", "")
    assert measure(tmp_path, answers())
    monkeypatch.setattr(native, "native_system", lambda: "macos")
    assert measure(tmp_path, answers()) == {}


def test_a_crossed_build_sees_the_cross_compilers_alone() -> None:
    cross = Compiler("gcc", "12.2.0")
    host = Host(
        "x86_64",
        "linux",
        HostResources(4, 2**34),
        compilers=HostCompilers(default=Compiler("gcc", "13.1.0"), by_command={"g++": cross}),
        programs=HostPrograms(paths={"c++": "g++", "git": "/usr/bin/git"}),
        toolkits=HostToolkits(homes={"13.0": "/usr/local/cuda"}),
        crossings={
            "aarch64": HostCrossing(
                compilers={"aarch64-linux-gnu-g++": cross},
                glibc="2.31",
                toolkits={"13.2": "/cache/13.2"},
            )
        },
    )
    view = crossing_view(host, "aarch64")
    assert view.crosses == "aarch64"
    assert view.arch == "x86_64"
    assert view.compilers == HostCompilers(by_command={"aarch64-linux-gnu-g++": cross})
    assert view.programs.paths == {"git": "/usr/bin/git"}
    assert view.toolkits.homes == {"13.2": "/cache/13.2"}
    assert view.platform.glibc == "2.31"


def test_the_names_of_a_machine() -> None:
    assert crossing.crossed_arches() == ("aarch64",)
    assert crossing.triplet("aarch64") == "aarch64-linux-gnu"
