"""The kit of a shared tree: programs without a Python."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from torchmill.build import prepare

PROGRAM = "#!/bin/sh\necho 'cmake version 3.31'\n"
SCRIPT = "#!/nowhere/bin/python\nfrom cmake import cmake\ncmake()\n"


def pip(calls: list[tuple[str, ...]]) -> Callable[..., None]:
    """Return what installs as pip does: a script that starts a program, a program, a library."""

    def install(*arguments: str) -> None:
        calls.append(arguments)
        prefix = Path(arguments[arguments.index("--prefix") + 1])
        package = prefix / "lib" / "python3.10" / "site-packages" / "cmake" / "data" / "bin"
        for file, text in {
            package / "cmake": PROGRAM,
            package.parents[2] / "mkl_static-2022.2.1.dist-info" / "METADATA": "",
            prefix / "bin" / "cmake": SCRIPT,
            prefix / "bin" / "f2py": SCRIPT,
            prefix / "bin" / "ninja": "\x7fELF",
            prefix / "lib" / "libmkl_core.a": "",
        }.items():
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
            file.chmod(0o755)

    return install


def test_programs_start_without_the_python_that_brought_them(tmp_path: Path) -> None:
    calls: list[tuple[str, ...]] = []
    folder = tmp_path / "kit"
    prepare.provide_shared_tools(folder, ("cmake<4", "ninja"), pip(calls))
    (arguments,) = calls
    assert arguments[-2:] == ("cmake<4", "ninja")
    assert "--ignore-installed" in arguments, "what the environment has is none of the kit's"
    assert sorted(path.name for path in (folder / "bin").iterdir()) == ["cmake", "ninja"]
    said = subprocess.run([folder / "bin" / "cmake"], capture_output=True, text=True, check=True).stdout
    assert said == "cmake version 3.31\n"
    assert (folder / "bin" / "cmake").resolve().is_relative_to(folder.resolve()), "not where it was made"
    assert (folder / "lib" / "libmkl_core.a").is_file()
    assert prepare.list_shared_tools(folder) == ["mkl_static==2022.2.1"]


def test_it_is_made_once(tmp_path: Path) -> None:
    calls: list[tuple[str, ...]] = []
    for _ in range(2):
        prepare.provide_shared_tools(tmp_path / "kit", ("cmake",), pip(calls))
    assert len(calls) == 1


def test_half_of_it_is_never_taken_for_all(tmp_path: Path) -> None:
    calls: list[tuple[str, ...]] = []

    def fails(*arguments: str) -> None:
        pip(calls)(*arguments)
        raise OSError

    with pytest.raises(OSError):  # noqa: PT011 (whatever pip's failure is)
        prepare.provide_shared_tools(tmp_path / "kit", ("cmake",), fails)
    assert not (tmp_path / "kit").exists()
    prepare.provide_shared_tools(tmp_path / "kit", ("cmake",), pip(calls))
    assert (tmp_path / "kit" / "bin" / "cmake").exists()


def test_a_package_without_one_has_an_empty_one(tmp_path: Path) -> None:
    prepare.provide_shared_tools(tmp_path / "kit", (), pytest.fail)
    assert list((tmp_path / "kit" / "bin").iterdir()) == []
