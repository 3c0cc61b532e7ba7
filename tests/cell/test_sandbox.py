"""Which builds are cut off from the network, and why others are not."""

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from torchmill.cell.sandbox import Sandbox, choose_sandbox
from torchmill.toolchain.compiler_cache import CompilerCache

SCCACHE = CompilerCache("sccache", "/usr/bin/sccache")


def unshare(folder: Path, script: str) -> None:
    """Put a program of this name before the system's."""
    (folder / "unshare").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "unshare").chmod(0o755)


@pytest.fixture
def willing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give a system that lets nobody but itself have namespaces, and says so of each way but the last."""
    unshare(
        tmp_path, 'case "$*" in *map-root*) ;; *) echo "unshare: not permitted" >&2; exit 1 ;; esac'
    )
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    return tmp_path


@pytest.mark.usefixtures("willing")
def test_the_first_way_that_works_is_taken() -> None:
    expected = Sandbox(("unshare", "--user", "--map-root-user", "--net", "--"))
    assert choose_sandbox(CompilerCache(), {}, network_allowed=False) == expected


@pytest.mark.usefixtures("willing")
@pytest.mark.parametrize(
    ("cache", "variables"),
    [
        (
            SCCACHE,
            {
                "SCCACHE_SERVER_UDS": "/run/socket",
                "SCCACHE_REDIS_ENDPOINT": "redis://cache.example",
            },
        ),
        (CompilerCache("ccache"), {"CCACHE_REMOTE_STORAGE": "file:/shared/cache|read-only"}),
        (CompilerCache("ccache"), {"CCACHE_REMOTE_STORAGE": "file:/parts/1 file:/parts/2"}),
        (CompilerCache(), {"CC": "gcc -m64", "CXX": "'", "CCACHE_PREFIX": "/tree/gate"}),
    ],
)
def test_what_needs_no_network_leaves_the_build_sealed(
    cache: CompilerCache, variables: dict[str, str]
) -> None:
    assert choose_sandbox(cache, variables, network_allowed=False).prefix


@pytest.mark.usefixtures("willing")
@pytest.mark.parametrize(
    ("cache", "variables", "why"),
    [
        (SCCACHE, {}, "sccache's server is reached over it"),
        (
            CompilerCache("ccache"),
            {"CCACHE_REMOTE_STORAGE": "redis://h:1"},
            "ccache reaches its remote storage over it",
        ),
        (
            CompilerCache("ccache"),
            {"CCACHE_REMOTE_STORAGE": "file:/shared/cache redis://h:1"},
            "ccache reaches its remote storage over it",
        ),
        (
            CompilerCache(),
            {"CCACHE_SECONDARY_STORAGE": "http://h"},
            "ccache reaches its remote storage over it",
        ),
        (
            CompilerCache(),
            {"CCACHE_PREFIX": "/usr/bin/distcc"},
            "distcc compiles on other machines",
        ),
        (CompilerCache(), {"CXX": "icecc g++"}, "icecc compiles on other machines"),
        (
            CompilerCache(),
            {"CMAKE_CXX_COMPILER_LAUNCHER": "ccache;distcc"},
            "distcc compiles on other machines",
        ),
    ],
)
def test_what_needs_the_network_is_the_reason_to_leave_it(
    cache: CompilerCache, variables: dict[str, str], why: str
) -> None:
    assert choose_sandbox(cache, variables, network_allowed=False) == Sandbox(why_open=why)


def test_icecc_in_the_place_of_a_compiler_on_path_is_seen(willing: Path) -> None:
    unshare(willing, "exit 0")
    assert choose_sandbox(CompilerCache(), {}, network_allowed=False).prefix
    shutil.copy(willing / "unshare", willing / "icecc")
    (willing / "c++").symlink_to("icecc")
    assert choose_sandbox(CompilerCache(), {}, network_allowed=False) == Sandbox(
        why_open="icecc compiles on other machines"
    )


def test_a_system_that_forbids_it_is_quoted(willing: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unshare(willing, "echo 'unshare: unshare failed: Operation not permitted' >&2; exit 1")
    assert choose_sandbox(CompilerCache(), {}, network_allowed=False).why_open.endswith(
        "unshare failed: Operation not permitted"
    )
    (willing / "unshare").unlink()
    monkeypatch.setenv("PATH", str(willing))
    assert "only Linux" in choose_sandbox(CompilerCache(), {}, network_allowed=False).why_open


def test_asking_for_the_network_goes_before_all() -> None:
    assert choose_sandbox(SCCACHE, {}, network_allowed=True) == Sandbox(why_open="--network")


def test_nothing_answers_in_there() -> None:
    prefix = choose_sandbox(CompilerCache(), {}, network_allowed=False).prefix
    if not prefix:
        pytest.skip("this system gives no namespaces")
    call = (
        sys.executable,
        "-c",
        "import socket; socket.create_connection(('127.0.0.1', int(input())), 5)",
    )
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = f"{server.getsockname()[1]}\n"
        within, outside = (
            subprocess.run([*words, *call], input=port, capture_output=True, text=True, check=False)
            for words in (prefix, ())
        )
    assert (within.returncode, outside.returncode) == (1, 0)
    assert "Network is unreachable" in within.stderr
