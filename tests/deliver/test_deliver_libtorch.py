"""libtorch archives: their contents, their names, and C++ programs that are built with them."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from zipfile import ZipFile

import pytest
from press_support import compiled_wheels as tiny

from tests.support.commands import ROOT, run
from tests.support.refusals import refused
from torchmill.config import facts_reader
from torchmill.config.release_lookup import find_release
from torchmill.core import formats
from torchmill.core.paths import Layout
from torchmill.deliver import libtorch
from torchmill.deliver.products import VerifiedWheel, find_verified
from torchmill.host import measurement, native
from torchmill.plan import build_plan, cell_lookup
from torchmill.plan.build_options import Options
from torchmill.wheel import dist_files

pytestmark = tiny.needs_compiler

THIS = f"{sys.version_info.major}.{sys.version_info.minor}"
COMPILER = shutil.which("c++")
ADD = "namespace tiny { double add(double a, double b) { return a + b; } }"
HEADER = "#pragma once\nnamespace tiny { double add(double left, double right); }\n"


def package(folder: Path, name: str = "tinytorch", add: str = ADD) -> Path:
    """Write a package like torch's: libraries, two of them for Python, and a header."""
    root = folder / name
    for directory in ("lib", "include/tiny", "share/cmake/Tiny", "bin", "share/__pycache__"):
        (root / directory).mkdir(parents=True)
    (root / "include/tiny/ops.h").write_text(HEADER)
    (root / "share/cmake/Tiny/TinyConfig.cmake").write_text("# found\n")
    (root / "share/__pycache__/x.pyc").write_text("")
    (root / "bin/protoc").write_text("")
    (root / "version.py").write_text("")
    code = folder / "add.cpp"
    code.write_text(add)
    words = ["-shared", "-fPIC", "-o", str(root / "lib/libtiny.so"), str(code)]
    subprocess.run([str(COMPILER), *words], check=True)
    code.unlink()
    calls = "void Py_IncRef(void *); void hold(void *x) { Py_IncRef(x); }"
    python = tiny.shared(calls, root / "lib/libtiny_python.so")
    tiny.shared("", root / "lib/libtiny_more.so", python)
    return root


@pytest.fixture
def verified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> VerifiedWheel:
    """Return a wheel of the sample's name in dist/, with its manifest."""
    monkeypatch.setenv("TORCHMILL_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return delivered(tmp_path)


def delivered(folder: Path, add: str = ADD) -> VerifiedWheel:
    facts = facts_reader.read_facts(ROOT / "sample" / "build_configs")
    release = find_release(facts, "tinytorch", "v1.0.0")
    cell = cell_lookup.find_cell(facts, f"wheel-{THIS}-cpu", native.native_arch(), release)
    layout = Layout.of_checkout(ROOT)
    planned = build_plan.compute_plan(facts, cell, measurement.measure_host(layout.root), Options())
    tree = folder / "tree"
    package(tree, add=add)
    raw = tiny.raw_wheel(tree, "tinytorch", "1.0.0+cpu", folder)
    wheel = layout.dist / planned.wheel.file_name
    wheel.parent.mkdir(parents=True, exist_ok=True)
    raw.rename(wheel)
    manifest = {
        "format": formats.MANIFEST,
        "sha256": hashlib.sha256(wheel.read_bytes()).hexdigest(),
        "planned": planned.wheel.file_name,
        "commit": tiny.COMMIT,
    }
    wheel.with_name(f"{wheel.name}.json").write_text(json.dumps(manifest))
    shutil.rmtree(tree)
    return VerifiedWheel(layout, facts, cell, planned, wheel, manifest)


def test_the_files_for_cxx_do_not_need_python(tmp_path: Path) -> None:
    assert sorted(libtorch.cxx_files(package(tmp_path))) == [
        "include/tiny/ops.h",
        "lib/libtiny.so",
        "share/cmake/Tiny/TinyConfig.cmake",
    ]


def test_the_abi_is_read_from_the_cmake_files(tmp_path: Path) -> None:
    root = package(tmp_path)
    assert libtorch.uses_cxx11_abi(root) is False
    config = root / "share/cmake/Tiny/TinyConfig.cmake"
    for number, is_new in ((0, False), (1, True)):
        config.write_text(f'set(TORCH_CXX_FLAGS "-D_GLIBCXX_USE_CXX11_ABI={number}")\n')
        assert libtorch.uses_cxx11_abi(root) is is_new


@pytest.mark.parametrize(
    ("system", "arch", "abi", "name"),
    [
        ("linux", "x86_64", "", "libtorch-shared-with-deps-1.13.1+cpu.zip"),
        ("linux", "x86_64", "cxx11-abi-", "libtorch-cxx11-abi-shared-with-deps-1.13.1+cpu.zip"),
        (
            "linux",
            "aarch64",
            "cxx11-abi-",
            "libtorch-cxx11-abi-shared-with-deps-1.13.1+cpu-aarch64.zip",
        ),
        ("windows", "amd64", "", "libtorch-win-shared-with-deps-1.13.1+cpu.zip"),
        ("macos", "arm64", "", "libtorch-macos-arm64-1.13.1+cpu.zip"),
    ],
)
def test_archives_have_the_names_of_official_ones(
    system: str, arch: str, abi: str, name: str
) -> None:
    assert libtorch.archive_name("torch", "1.13.1+cpu", system, arch, abi) == name


def test_an_archive_is_made_tried_and_used_again(verified: VerifiedWheel) -> None:
    product = libtorch.make_libtorch(verified)
    archive = product.file
    assert str(product) == f"{archive} is made"
    with ZipFile(archive) as packed:
        assert packed.namelist() == [
            "libtinytorch/include/tiny/ops.h",
            "libtinytorch/lib/libtiny.so",
            "libtinytorch/share/cmake/Tiny/TinyConfig.cmake",
            "libtinytorch/build-hash",
            "libtinytorch/build-version",
        ]
        assert packed.read("libtinytorch/build-version") == b"1.0.0+cpu\n"
        assert packed.read("libtinytorch/build-hash").decode() == f"{tiny.COMMIT}\n"
    record = json.loads(dist_files.manifest_path(archive).read_text())
    assert record["consumer"] == "2 + 3 = 5"
    number = archive.stat().st_ino
    content = archive.read_bytes()
    assert str(libtorch.make_libtorch(verified)) == f"{archive} is up to date"
    assert archive.stat().st_ino == number, "it was made again"
    archive.unlink()
    assert libtorch.make_libtorch(verified) == product
    assert archive.read_bytes() == content, "the same wheel makes the same bytes"


def test_a_library_that_computes_wrongly_is_not_delivered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHMILL_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with refused("libtorch-check-failed"):
        libtorch.make_libtorch(delivered(tmp_path, ADD.replace("a + b", "a - b")))
    assert not list((tmp_path / "home" / "dist").glob("*.zip"))


def test_a_library_that_cannot_be_linked_is_not_delivered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHMILL_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with refused("libtorch-check-failed"):
        libtorch.make_libtorch(delivered(tmp_path, ADD.replace("add", "subtract")))


def test_a_wheel_that_was_changed_is_refused(verified: VerifiedWheel) -> None:
    with verified.wheel.open("ab") as file:
        file.write(b"more")
    with refused("wheel-changed"):
        libtorch.make_libtorch(verified)


def test_a_wheel_is_found_only_with_its_manifest(verified: VerifiedWheel) -> None:
    again = find_verified(ROOT, verified.facts, verified.cell, ())
    assert again is not None
    assert again == replace(verified, plan=again.plan)
    assert find_verified(ROOT, verified.facts, verified.cell, ("--label", "none")) is None
    verified.wheel.with_name(f"{verified.wheel.name}.json").unlink()
    assert find_verified(ROOT, verified.facts, verified.cell, ()) is None


@pytest.mark.usefixtures("verified")
def test_the_session_makes_the_archive_of_the_wheel_in_dist(tmp_path: Path) -> None:
    env = {
        "TORCHMILL_CONFIGS": str(ROOT / "sample" / "build_configs"),
        "TORCHMILL_TAG": "v1.0.0",
        "XDG_CACHE_HOME": os.environ["XDG_CACHE_HOME"],
    }
    done = run("nox", "-s", f"libtorch-{THIS}-cpu", home=tmp_path / "home", env=env)
    assert done.returncode == 0, done.stderr
    assert re.search(r"libtinytorch-shared-with-deps-1\.0\.0\+cpu(-\w+)?\.zip is made", done.stderr)
    listed = run("nox", "--list", "--json", home=tmp_path / "home", env=env)
    assert "libtorch" not in listed.stdout, "the JSON list is the matrix and nothing else"
