"""Which builds for other machines a command line names."""

import json
from pathlib import Path

import pytest

from tests.support.commands import run
from torchmill.build.cross import requested
from torchmill.config import matrix
from torchmill.config.model import Facts
from torchmill.host import native

OTHER = "aarch64" if native.native_arch() != "aarch64" else "x86_64"


def found(known: Facts, *words: str, further: tuple[str, ...] = ()) -> list[tuple[str, str, str]]:
    cells = requested.requested_cells(
        known,
        None,
        "x86_64",
        requested.session_names(words),
        lambda one: further if one.build.package == "base" else (),
    )
    return [(name, cell.release.version, cell.build.arch) for name, cell in cells]


def test_a_name_with_the_arch_of_another_machine_is_its_cell(known: Facts) -> None:
    assert found(known, "nox", "-s", "wheel-3.10-cpu-aarch64") == [("wheel-3.10-cpu", "2.0.0", "aarch64")]
    assert found(known, "-s", "vision-3.10-cpu-aarch64,wheel-3.9-cpu-arm64") == [
        ("vision-3.10-cpu", "0.1.0", "aarch64"),
        ("wheel-3.9-cpu", "1.0.0", "arm64"),
    ]


@pytest.mark.parametrize("words", [["-s", "wheel-3.10-cpu"], ["-l"], ["-s", "wheel-2.7-cpu-aarch64"], []])
def test_nothing_else_is(known: Facts, words: list[str]) -> None:
    assert found(known, *words) == []


def test_what_conflicts_forbid_is_none(known: Facts) -> None:
    release = matrix.find_release(known, "base", "1.0.0")
    wanted = requested.session_names(["wheel-3.10-cu118-aarch64"])
    assert list(requested.requested_cells(known, release, "x86_64", wanted)) == []


def test_what_is_made_of_the_base_wheel_can_be_made_there(known: Facts) -> None:
    name = "libtorch-3.10-cpu-aarch64"
    assert found(known, name) == []
    assert found(known, name, further=("libtorch",)) == [("libtorch-3.10-cpu", "2.0.0", "aarch64")]


def test_they_are_sessions_only_where_they_are_named(tmp_path: Path) -> None:
    name = f"wheel-3.10-cpu-{OTHER}"
    env = {"TORCHMILL_TAG": "v1.13.1"}
    assert name not in run("nox", "--list", home=tmp_path, env=env).stdout
    named = run("nox", "--list", "--json", "-s", name, home=tmp_path, env=env)
    assert [one["session"] for one in json.loads(named.stdout)] == [name], named.stderr
    env |= {"NOXSESSION": name}
    assert name in run("nox", "--list", home=tmp_path, env=env).stdout
