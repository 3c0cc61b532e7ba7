"""Extension modules and the function that an import of them calls."""

from __future__ import annotations

from pathlib import Path

import press_support.compiled_wheels as tiny
import pytest
from millpress import module_checks, verify_wheel, wheel_file
from millpress.__main__ import main
from press_support.expected_errors import refused
from press_support.written_wheels import made

SUFFIX = ".cpython-310-x86_64-linux-gnu.so"


@tiny.needs_compiler
@pytest.mark.parametrize(
    ("module", "function", "lacks"),
    [
        ("_C", "PyInit__C", False),
        ("_C", "PyModExport__C", False),
        ("_C", "PyInit__D", True),
        # https://peps.python.org/pep-0489/#export-hook-name
        ("lanč", "PyInitU_lan_2sa6t", True),
        ("lančmít", "PyInitU_lanmt_2sa6t", False),
        ("lančmít", "PyInit_lanmt_2sa6t", True),
    ],
)
def test_an_extension_module_has_the_function_of_its_name(
    tmp_path: Path, module: str, function: str, lacks: bool
) -> None:
    library = tiny.shared(f"void {function}(void) {{}}", tmp_path / "library.so")
    name = f"tinytorch/{module}{SUFFIX}"
    wheel = made(tmp_path / "wheel", files={name: library.read_bytes()})
    with wheel_file.open_wheel(wheel) as archive:
        clauses = list(module_checks.modules_without_entry(archive))
    assert [clause.startswith(f"{name} has no Py") for clause in clauses] == [True] * lacks


@tiny.needs_compiler
def test_modules_for_other_systems_are_said_not_to_be_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    library = tiny.shared("void PyInit__C(void) {}", tmp_path / "library.so")
    mac_os = "tinytorch/_C.cpython-310-darwin.so"
    windows = "tinytorch/_D.cp310-win_amd64.pyd"
    modules = {
        f"tinytorch/_C{SUFFIX}": library.read_bytes(),
        mac_os: b"\xcf\xfa\xed\xfe",
        windows: b"MZ",
    }
    wheel = made(tmp_path / "wheel", files=modules)
    with wheel_file.open_wheel(wheel) as archive:
        assert list(module_checks.unread_modules(archive)) == [mac_os, windows]
    assert main(["verify", str(wheel)]) == 0
    not_read, sound = capsys.readouterr().out.splitlines()
    assert not_read == f"{wheel}: not read: 2 extension modules not in ELF, such as {mac_os}"
    assert sound.startswith(f"{wheel}: sound")


def test_a_module_whose_checksum_is_wrong_is_refused(tmp_path: Path) -> None:
    wheel = made(tmp_path, files={f"tinytorch/_C{SUFFIX}": b"\x7fELF and more"})
    wheel.write_bytes(wheel.read_bytes().replace(b"ELF and more", b"ELF and less"))
    with refused("damaged-wheel"), wheel_file.open_wheel(wheel) as archive:
        list(module_checks.modules_without_entry(archive))


def test_a_full_disk_is_no_problem_of_the_wheel(tmp_path: Path) -> None:
    """The system writes the beginning of the module, and refuses only the rest."""
    resource = pytest.importorskip("resource")
    wheel = made(tmp_path, files={f"tinytorch/_C{SUFFIX}": b"\x7fELF" + bytes(300_000)})
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            verify_wheel(wheel)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
