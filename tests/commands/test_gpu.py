"""Wheels tried on a GPU: which are chosen, and what is said where no GPU answers."""

import json
import os
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from tests.support.changed_facts import change_groups
from tests.support.commands import ROOT, environment
from tests.support.commands import run as command
from tests.support.refusals import refused
from torchmill.commands import gpu
from torchmill.config.facts import Facts
from torchmill.config.rule import When
from torchmill.core.paths import Layout
from torchmill.wheel.verify.clean_environment import CheckResult

THIS = "{}.{}".format(*sys.version_info)
TAG = f"cp{THIS.replace('.', '')}-cp{THIS.replace('.', '')}"
CODE = {"lib.so": {"8.6": 1}}
# A torch as it is on a machine whose GPU does not answer: what it says there is all that is needed of it.
SILENT = """
    __version__ = "1.13.1+cu118"

    class version:
        cuda = "11.8"

    class cuda:
        @staticmethod
        def init():
            raise RuntimeError("Unexpected error from cudaGetDeviceCount(). Error 802: not yet initialized")

        @staticmethod
        def is_available():
            return False
"""
ANSWERING = (
    SILENT.replace("False", "True")
    + """
    class backends:
        cuda = cudnn = None

    def manual_seed(seed):
        pass
"""
)


def wheel(dist: Path, name: str, *, age: int = 0, tag: str = TAG, **manifest: Any) -> Path:
    """Make an empty wheel with a manifest beside it, some seconds older than another."""
    dist.mkdir(exist_ok=True)
    path = dist / f"{name}-{tag}-manylinux_2_36_x86_64.whl"
    path.touch()
    os.utime(path, (10**9 - age, 10**9 - age))
    package, version = name.split("-")
    record = {"package": package, "version": version, "device_code": CODE, **manifest}
    path.with_name(f"{path.name}.json").write_text(json.dumps(record))
    return path


def names(wheels: list[gpu.GpuWheel]) -> list[str]:
    return [wheel.path.name.rpartition("-cp")[0].rpartition("-cp")[0] for wheel in wheels]


def test_the_newest_is_tried_with_what_belongs_to_it(tmp_path: Path) -> None:
    wheel(tmp_path, "torch-1.13.1+cu118", age=9)
    wheel(tmp_path, "torchvision-0.14.1+cu118", age=8, torch="torch==1.13.1+cu118")
    wheel(tmp_path, "torchvision-0.14.0+cu118", age=7, torch="torch==1.13.0+cu118")
    wheel(tmp_path, "torch-1.13.1+cpu", device_code={})
    contained = wheel(tmp_path, "torch-2.0.0+cu118")  # made in a container
    for path in (contained, contained.with_name(f"{contained.name}.json")):
        path.rename(path.with_name(path.name.replace("x86_64", "aarch64")))
    wheel(tmp_path, "torchaudio-0.13.1+cu118", age=6, torch="torch==1.13.1+cu118", tag="cp37-cp37m")
    wheel(tmp_path, "torch_scatter-2.1.2+cu118", age=1, torch="torch==1.13.1+cu118")
    fitting = ["torch-1.13.1+cu118", "torchvision-0.14.1+cu118", "torch_scatter-2.1.2+cu118"]
    assert names(gpu.newest_cuda_wheels(tmp_path, "x86_64")) == fitting
    wheel(
        tmp_path, "xformers-0.0.35+cu118", torch="torch==1.13.1+cu118", tag="py39-none"
    )  # for any Python
    newest = gpu.newest_cuda_wheels(tmp_path, "x86_64")
    assert [gpu_wheel.path.name.split("-")[0] for gpu_wheel in newest][-2:] == [
        "torch_scatter",
        "xformers",
    ]


def test_the_wheels_chosen_beside_one_for_any_python_have_a_common_python(tmp_path: Path) -> None:
    wheel(tmp_path, "torch-2.0", age=9, tag="cp310-cp310")
    wheel(tmp_path, "torchvision-0.15", age=8, torch="torch==2.0", tag="cp310-cp310")
    wheel(tmp_path, "torch-2.0", age=7, tag="cp311-cp311")
    wheel(tmp_path, "xformers-0.0.35", torch="torch==2.0", tag="py39-none")
    newest = gpu.newest_cuda_wheels(tmp_path, "x86_64")
    assert [gpu_wheel.path.name.split("-")[0] for gpu_wheel in newest] == ["torch", "xformers"]
    assert gpu.common_python(newest) == "3.11"


def test_nothing_to_try_is_told(tmp_path: Path) -> None:
    wheel(tmp_path, "torch-1.13.1+cpu", device_code={})
    (tmp_path / "stray-1.0-py3-none-any.whl").touch()
    with refused("no-gpu-wheel"):
        gpu.newest_cuda_wheels(tmp_path, "x86_64")


@pytest.mark.parametrize(
    ("tags", "python"),
    [(["cp310-cp310"], "3.10"), (["cp37-cp37m", "py3-none"], "3.7"), (["cp313-cp313t"], "3.13t")],
)
def test_the_wheels_name_the_python(tmp_path: Path, tags: list[str], python: str) -> None:
    wheels = [
        gpu.GpuWheel(wheel(tmp_path, f"one-{number}", tag=tag), {})
        for number, tag in enumerate(tags)
    ]
    assert gpu.common_python(wheels) == python


def test_wheels_for_any_python_are_tried_with_the_one_of_their_build(tmp_path: Path) -> None:
    free = gpu.GpuWheel(
        wheel(tmp_path, "xformers-1", tag="py39-none"), {"identifier": "xformers-3.12-cu130"}
    )
    assert gpu.common_python([free]) == "3.12"
    assert (
        gpu.common_python([free, gpu.GpuWheel(wheel(tmp_path, "torch-2", tag="cp310-cp310"), {})])
        == "3.10"
    )
    hyphenated = gpu.GpuWheel(free.path, {"identifier": "flash-attn-3.11-cu118"})
    assert gpu.common_python([hyphenated]) == "3.11"
    with refused("several-pythons") as caught:
        gpu.common_python([gpu.GpuWheel(free.path, {})])
    assert "nothing says for which Python" in str(caught.value)


def test_wheels_for_several_pythons_are_refused(tmp_path: Path) -> None:
    wheels = [
        gpu.GpuWheel(wheel(tmp_path, "one-1", tag=tag), {})
        for tag in ("cp310-cp310", "cp311-cp311")
    ]
    with refused("several-pythons"):
        gpu.common_python(wheels)
    with refused("invalid-wheel-name"):
        gpu.common_python([gpu.GpuWheel(tmp_path / "notes.txt", {})])


def test_what_is_expected_is_what_the_manifest_of_torch_and_the_facts_tell(
    tmp_path: Path, shipped: Facts
) -> None:
    libraries = {"cudnn": "8.5.0.96"}
    manifest = {"package": "torch", "toolkit": "11.8", "libraries": libraries}
    torch = gpu.GpuWheel(wheel(tmp_path, "torch-1"), manifest)
    vision = gpu.GpuWheel(
        wheel(tmp_path, "torchvision-1"), {"torch": "torch==1", "toolkit": "11.7"}
    )
    scatter = gpu.GpuWheel(wheel(tmp_path, "torch_scatter-2"), {})  # somebody else's
    assert gpu.expected_values([vision, torch, scatter]) == {
        "cuda": "11.8",
        "switches": {},
        "libraries": libraries,
        "vision": True,
    }
    assert gpu.expected_values([vision])["cuda"] is None
    lines = list(shipped.packages["torch-scatter"].checks.gpu_smoke)
    assert gpu.smoke_lines_by_package(shipped, [vision, torch, scatter]) == {"torch-scatter": lines}


def test_each_declared_extension_is_tried_on_a_gpu(shipped: Facts) -> None:
    untried = []
    for package in shipped.packages.values():
        is_never_built = any(rule.conflict and rule.when == When() for rule in package.rules)
        is_tried = any("alike(" in line for line in package.checks.gpu_smoke)
        if package.editions and not is_never_built and not is_tried:
            untried.append(package.name)
    assert untried == []


@pytest.mark.parametrize(
    ("code", "gpus", "runs"),
    [
        (["8.6"], ["8.6"], True),
        (["8.6"], ["8.9"], True),  # within a major capability
        (["8.6"], ["9.0"], False),
        (["7.0 PTX"], ["9.0"], True),
        (["8.6"], ["9.0", "8.6"], True),  # one of two GPUs
        (["8.6", "9.0"], ["7.5"], False),
        (["8.6"], ["9.0", "9.0"], False),  # two GPUs of a kind
        ([], ["9.0"], True),  # nobody knows
        (["8.6"], [], True),
    ],
)
def test_a_wheel_without_code_for_the_gpus_is_told(
    shipped: Facts, tmp_path: Path, code: list[str], gpus: list[str], runs: bool
) -> None:
    gpu_wheel = gpu.GpuWheel(
        tmp_path / "x.whl", {"device_code": {"lib.so": dict.fromkeys(code, 1)}}
    )
    reason = gpu.why_unusable(shipped, gpu_wheel, gpus)
    assert (reason is None) == runs
    assert reason is None or f"--arch-list '{';'.join(dict.fromkeys(gpus))}'" in reason


def test_an_extension_that_cannot_be_installed_leaves_the_others_to_be_tried(
    tmp_path: Path, shipped: Facts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOX_ENVDIR", str(tmp_path))
    extensions = [
        packed(tmp_path, "torch_scatter-2.1.2"),
        packed(tmp_path, "torch_sparse-1", "Requires-Dist: torchmill-absent"),
    ]
    wheels = [gpu.GpuWheel(path, {}) for path in (*extensions, silent_torch(tmp_path))]
    checks = gpu.check_on_gpu(shipped, wheels, [], Layout.of_checkout(tmp_path))
    refusal = checks.pop(extensions[1].name)
    assert not refusal.ok
    assert "torchmill-absent" in refusal.detail
    assert extensions[0].name not in checks
    assert checks["import"].ok


def test_an_extension_that_crashes_names_its_line_and_leaves_the_others_to_be_tried(
    tmp_path: Path, shipped: Facts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOX_ENVDIR", str(tmp_path))
    lines = {
        "torch-scatter": ("import ctypes", "ctypes.string_at(0)"),
        "torch-sparse": ("assert 1 == 1",),
    }
    packages = {
        name: change_groups(shipped.packages[name], checks={"gpu_smoke": smoke_lines})
        for name, smoke_lines in lines.items()
    }
    facts = replace(shipped, packages=shipped.packages | packages)  # type: ignore[operator]
    answering = packed(tmp_path, "torch-1.13.1+cu118", module=dedent(ANSWERING))
    paths = (packed(tmp_path, "torch_scatter-2.1.2"), packed(tmp_path, "torch_sparse-1"), answering)
    wheels = [gpu.GpuWheel(path, {}) for path in paths]
    checks = gpu.check_on_gpu(facts, wheels, [], Layout.of_checkout(tmp_path))
    assert "SIGSEGV" in checks["torch-scatter"].detail
    assert checks["torch-scatter"].detail.endswith(" in string_at; see the log")
    assert checks["torch-sparse"] == CheckResult(ok=True, detail="1 lines")


def silent_torch(folder: Path) -> Path:
    """Pack a torch that finds no GPU."""
    return packed(folder, "torch-1.13.1+cu118", module=dedent(SILENT))


def packed(folder: Path, name: str, requires: str = "", module: str = "") -> Path:
    """Pack a wheel of one module, "torch-1.13.1"."""
    package, version = name.split("-")
    path = folder / f"{name}-{TAG}-{gpu_platform()}.whl"
    info = f"{name}.dist-info"
    members = {
        f"{package}/__init__.py": module,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n{requires}\n",
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: {TAG}-{gpu_platform()}\n",
    }
    record = "".join(f"{name},,\n" for name in (*members, f"{info}/RECORD"))
    with zipfile.ZipFile(path, "w") as archive:
        for member, text in {**members, f"{info}/RECORD": record}.items():
            archive.writestr(member, text)
    return path


def gpu_platform() -> str:
    from packaging.tags import sys_tags

    return next(iter(sys_tags())).platform


def test_a_silent_gpu_fails_the_first_check_and_all_that_compute(
    tmp_path: Path, shipped: Facts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOX_ENVDIR", str(tmp_path))
    silent = gpu.GpuWheel(silent_torch(tmp_path), {})
    checks = gpu.check_on_gpu(shipped, [silent], [], Layout.of_checkout(tmp_path))
    assert checks["import"].ok
    assert not checks["device"].ok
    assert checks["device"].detail.startswith(
        "RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 802"
    )
    assert checks["matmul"] == CheckResult(ok=False, detail="no GPU answers")
    assert list(tmp_path.glob("gpu-*")) == []


def test_a_machine_without_a_gpu_says_so_at_once(tmp_path: Path) -> None:
    if Path("/proc/driver/nvidia").exists() or Path("/dev/nvidiactl").exists():
        pytest.skip("there is a GPU here")
    process = command("nox", "-s", "gpu", "--", str(silent_torch(tmp_path)), home=tmp_path)
    assert process.returncode == 13, process.stderr
    assert "no NVIDIA GPU here" in process.stderr
    assert "Traceback" not in process.stderr
    words = [
        sys.executable,
        "-m",
        "nox",
        "-f",
        str(ROOT / "noxfile.py"),
        "-s",
        "gpu",
        "--",
        silent_torch(tmp_path).name,
    ]
    smi = subprocess.run(
        words, cwd=tmp_path, env=environment(tmp_path), capture_output=True, text=True, check=False
    )
    assert smi.returncode == 13, "a path is taken from where nox was called"


def test_a_wheel_that_is_not_there_is_told(tmp_path: Path) -> None:
    process = command("nox", "-s", "gpu", "--", str(tmp_path / "no.whl"), home=tmp_path)
    assert process.returncode == 1
    assert "no such wheel" in process.stderr
    assert "Traceback" not in process.stderr
