"""The builds of this machine, as their manifests tell them."""

import json
from pathlib import Path

import pytest

from torchmill.config.model import Facts
from torchmill.host.native import native_arch
from torchmill.plan import estimate

MANIFEST = {
    "package": "torch",
    "tag": "v1.13.1",
    "version": "1.13.1+cu117",
    "switches": {"TORCH_CUDA_ARCH_LIST": "8.0;8.6", "MAX_JOBS": "4"},
    "seconds": {"requirements": 16.2, "prepare": 1.0, "compile": 3600.0, "pack": 16.0, "verify": 11.7},
    "cpu_seconds": 13000.5,
    "peak_memory": 2164322304,
    "jobs": 4,
    "size": 139116727,
}


def write(folder: Path, name: str, text: str) -> None:
    (folder / f"{name}.whl.json").write_text(text, encoding="utf-8")


def test_a_manifest_is_a_run(shipped: Facts, tmp_path: Path) -> None:
    write(tmp_path, "torch-1.13.1+cu117", json.dumps(MANIFEST))
    (run,) = estimate.read_own_runs(shipped, tmp_path)
    assert (run.package, run.release, run.jobs, run.cpu) == ("torch", "1.13.1", 4, 13000.5)
    assert run.capabilities == "8.0;8.6"
    assert run.wall == pytest.approx(3644.9)
    assert run.source == "torch-1.13.1+cu117.whl"


def test_what_cannot_be_read_is_no_run(shipped: Facts, tmp_path: Path) -> None:
    write(tmp_path, "broken", "{")
    write(tmp_path, "list", "[]")
    write(tmp_path, "old", json.dumps({**MANIFEST, "seconds": None}))
    write(tmp_path, "unknown", json.dumps({**MANIFEST, "tag": "v0.0.1"}))
    write(tmp_path, "foreign", json.dumps({**MANIFEST, "package": "numpy"}))
    assert estimate.read_own_runs(shipped, tmp_path) == ()
    assert estimate.read_own_runs(shipped, tmp_path / "absent") == ()


def test_what_a_container_built_for_another_machine_says_nothing_of_this_one(
    shipped: Facts, tmp_path: Path
) -> None:
    for arch in ("x86_64", "aarch64"):
        write(tmp_path, f"torch-1.13.1+cpu-cp310-cp310-manylinux_2_36_{arch}", json.dumps(MANIFEST))
    (run,) = estimate.read_own_runs(shipped, tmp_path)
    assert run.source.endswith(f"_{native_arch()}.whl")
