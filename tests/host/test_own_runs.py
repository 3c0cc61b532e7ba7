"""The builds that this machine has made, by the manifests of its wheels."""

import json
from pathlib import Path
from typing import Any

import pytest

from torchmill.config.facts import Facts
from torchmill.host.native import native_arch
from torchmill.host.own_runs import read_own_runs

MANIFEST: dict[str, Any] = {
    "package": "torch",
    "tag": "v1.13.1",
    "version": "1.13.1+cu117",
    "switches": {"TORCH_CUDA_ARCH_LIST": "8.0;8.6", "MAX_JOBS": "4"},
    "seconds": {
        "requirements": 16.2,
        "prepare": 1.0,
        "compile": 3600.0,
        "pack": 16.0,
        "verify": 11.7,
    },
    "cpu_seconds": 13000.5,
    "peak_memory": 2164322304,
    "jobs": 4,
    "size": 139116727,
}


def write_manifest(dist: Path, stem: str, **changes: Any) -> None:
    content = json.dumps({**MANIFEST, **changes})
    (dist / f"{stem}.whl.json").write_text(content, encoding="utf-8")


def test_a_manifest_is_a_run(shipped: Facts, tmp_path: Path) -> None:
    write_manifest(tmp_path, "torch-1.13.1+cu117")
    (run,) = read_own_runs(shipped, tmp_path)
    assert (run.package, run.release, run.jobs) == ("torch", "1.13.1", 4)
    assert run.cpu_seconds == 13000.5
    assert run.capabilities == "8.0;8.6"
    assert run.wall_seconds == pytest.approx(3644.9)
    assert run.source == "torch-1.13.1+cu117.whl"


def test_the_torch_of_a_run_is_that_which_the_package_was_built_against(
    shipped: Facts, tmp_path: Path
) -> None:
    write_manifest(tmp_path, "torch-1.13.1+cu117", torch=None)
    write_manifest(
        tmp_path,
        "torchvision-0.14.1",
        package="torchvision",
        tag="v0.14.1",
        torch="torch==1.13.1+cu117",
    )
    torch_run, torchvision_run = read_own_runs(shipped, tmp_path)
    assert torch_run.torch is None
    assert torchvision_run.torch == "1.13.1"


def test_a_toolkit_without_facts_is_not_taken_for_none(shipped: Facts, tmp_path: Path) -> None:
    write_manifest(tmp_path, "torch-1.13.1+cu999", toolkit="99.9")
    (run,) = read_own_runs(shipped, tmp_path)
    assert run.variant == "cu999"


def test_a_manifest_that_cannot_be_read_is_no_run(shipped: Facts, tmp_path: Path) -> None:
    (tmp_path / "broken.whl.json").write_text("{")
    (tmp_path / "list.whl.json").write_text("[]")
    write_manifest(tmp_path, "old", seconds=None)
    write_manifest(tmp_path, "unknown", tag="v0.0.1")
    write_manifest(tmp_path, "foreign", package="numpy")
    assert read_own_runs(shipped, tmp_path) == ()
    assert read_own_runs(shipped, tmp_path / "absent") == ()


def test_builds_for_other_machines_are_left_out(shipped: Facts, tmp_path: Path) -> None:
    for arch in ("x86_64", "aarch64"):
        write_manifest(tmp_path, f"torch-1.13.1+cpu-cp310-cp310-manylinux_2_36_{arch}")
    (run,) = read_own_runs(shipped, tmp_path)
    assert run.source.endswith(f"_{native_arch()}.whl")


def test_bytes_on_disk_are_read_if_the_manifest_has_them(shipped: Facts, tmp_path: Path) -> None:
    write_manifest(tmp_path, "complete", disk={"tree": 70, "outputs": 20, "environment": 10})
    write_manifest(tmp_path, "invalid", disk={"tree": "much"})
    write_manifest(tmp_path, "old")
    complete, old = read_own_runs(shipped, tmp_path)
    assert (complete.tree, complete.environment) == (90, 10)
    assert (old.tree, old.environment) == (None, None)
