"""Installed system packages, as each package manager lists them."""

from pathlib import Path

import pytest

from tests.support.machines import file, made_up_programs, only, program
from torchmill.host import programs
from torchmill.host.programs import make_runner

pytestmark = made_up_programs


@pytest.mark.parametrize(
    ("manager", "tool", "lines"),
    [
        (
            "apt",
            "dpkg-query",
            ["installed git 1:2.39.5-0", "config-files ccache 4.7.5", "not-installed libnuma-dev"],
        ),
        ("dnf", "rpm", ["installed git 1:2.39.5-0"]),
        ("brew", "brew", ["git 2.38.0 1:2.39.5-0"]),
    ],
)
def test_the_manager_is_asked(tmp_path: Path, manager: str, tool: str, lines: list[str]) -> None:
    program(tmp_path, tool, *lines)
    environ = only(tmp_path)
    assert programs.installed_packages(manager, environ, make_runner(environ)) == {"git": "1:2.39.5-0"}


def test_conda_keeps_files(tmp_path: Path) -> None:
    file(tmp_path / "conda-meta/cxx-compiler-1.7.0-h00ab1b0_0.json")
    file(tmp_path / "conda-meta/history")
    environ = only(tmp_path, CONDA_PREFIX=str(tmp_path))
    assert programs.installed_packages("conda", environ, make_runner(environ)) == {"cxx-compiler": "1.7.0"}
