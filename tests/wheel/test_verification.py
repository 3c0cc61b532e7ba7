"""Wheels installed and checked in a clean environment."""

from __future__ import annotations

import io
import shutil
import sys
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from press_support import compiled_wheels as tiny

from tests.support import tiny_plans
from tests.support.fatbins import PTX, fatbin, library, piece
from tests.support.refusals import refused
from torchmill.config.arch_list import ArchTarget
from torchmill.core.process import capture
from torchmill.host.environments import environment_python
from torchmill.plan.plan import Plan, PlannedCuda, expected_values
from torchmill.wheel.verify import clean_environment
from torchmill.wheel.verify.clean_environment import CheckResult, clean_variables, parse_results
from torchmill.wheel.verify.verification import verify_wheel

PYTHON = Path(sys.executable)
TARGETS = (ArchTarget("7.0"), ArchTarget("8.6", ptx=True))


@dataclass(frozen=True)
class Dist:
    """Finished wheels, and a raw wheel; all else that they were made from is gone."""

    torch: Path
    vision: Path
    raw: Path


@pytest.fixture(scope="module")
def dist(raw: tiny.Raw, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dist]:
    folder = tmp_path_factory.mktemp("made")
    torch, _ = tiny.finish(raw.torch, folder / "dist", folder / "stage1", folders=(raw.outside,))
    vision, _ = tiny.finish(
        raw.vision, folder / "dist", folder / "stage2", folders=(raw.outside,), under=torch
    )
    for stage in (folder / "stage1", folder / "stage2"):
        shutil.rmtree(stage)
    # The finished wheels have to work without the libraries that were bundled.
    away = raw.outside.rename(raw.outside.with_name("away"))
    yield Dist(torch, vision, raw.torch)
    away.rename(raw.outside)


def installed_packages(venv: Path) -> set[str]:
    return set(capture([str(venv), "-m", "pip", "list", "--format=freeze"]).split())


@tiny.needs_compiler
def test_repaired_wheels_work_without_the_libraries_of_the_machine(
    dist: Dist, tmp_path: Path
) -> None:
    plan = tiny_plans.plan("tinyvision", "0.5+cpu", torch="tinytorch==1.0+cpu")
    checks, _ = verify(dist.vision, plan, "tinyvision", tmp_path, dist.torch)
    assert checks["value"] == CheckResult(ok=True, detail="")
    venv = tmp_path / "scratch" / "venv" / "bin" / "python"
    assert {"tinytorch==1.0+cpu", "tinyvision==0.5+cpu"} <= installed_packages(venv)
    # The same environment has the wheel that this one requires. It is checked against a plan that it
    # contradicts in three ways.
    expected = {
        "import": "tinytorch",
        "version": "2.0",
        "git_version": "f" * 40,
        "switches": {"USE_SLOW": "1"},
    }
    results = clean_environment.run_checks(venv, "sample_checks.py", expected, io.StringIO())
    assert {name for name, result in results.items() if not result.ok} == {
        "version",
        "git_version",
        "switches",
    }
    assert results["switches"].detail == "USE_SLOW is off, the plan says on"
    assert results["git_version"].detail.startswith(
        f"tinytorch.version.git_version is '{tiny.COMMIT}'"
    )
    assert results["library"] == CheckResult(ok=True, detail="libtiny.so")


def verify(
    wheel: Path,
    plan: Plan,
    name: str,
    tmp_path: Path,
    *extra: Path,
    targets: tuple[ArchTarget, ...] | None = None,
) -> tuple[Mapping[str, CheckResult], Mapping[str, Mapping[str, int]]]:
    with (tmp_path / "log").open("w") as log:
        return verify_wheel(
            wheel,
            plan.wheel,
            tiny_plans.package(name),
            expected_values(plan, tiny_plans.package(name)),
            python=PYTHON,
            scratch=tmp_path / "scratch",
            extra=extra,
            log=log,
            targets=targets,
            empty=tmp_path.parent / "environments",  # which all tests here copy
        )


@tiny.needs_compiler
def test_every_failed_check_is_listed_at_once(dist: Dist, tmp_path: Path) -> None:
    planned = tiny_plans.plan("tinytorch", "1.0+cpu", {"USE_SLOW": "1", "NO_FAST": "1"})
    wrong = replace(planned, source=replace(planned.source, git_version="f" * 40))
    with refused("wheel-check-failed") as caught:
        verify(dist.torch, wrong, "tinytorch", tmp_path)
    text = str(caught.value)
    assert "2 checks failed" in text
    assert "git_version: tinytorch.version.git_version is" in text
    assert "switches: USE_FAST is on, the plan says off; USE_SLOW is off, the plan says on" in text


@tiny.needs_compiler
def test_a_wheel_with_static_problems_is_not_installed(dist: Dist, tmp_path: Path) -> None:
    with refused("wheel-check-failed"):
        verify(dist.raw, tiny_plans.plan("tinytorch", "9"), "tinytorch", tmp_path)
    assert not (tmp_path / "scratch").exists()


@tiny.needs_compiler
def test_code_for_gpus_is_compared_with_the_targets(dist: Dist, tmp_path: Path) -> None:
    raw = Path(shutil.copy(dist.torch, tmp_path))
    kernels = library(
        tmp_path / "kernels.so", {".nv_fatbin": fatbin(piece(70), piece(86), piece(86, PTX))}
    )
    with zipfile.ZipFile(raw, "a") as archive:
        archive.write(kernels, "tinytorch/lib/libkernels.so")
    wheel, _ = tiny.finish(raw, tmp_path / "dist", tmp_path / "staging")
    plan = tiny_plans.plan("tinytorch", "1.0+cpu")
    cuda = replace(
        plan,
        wheel=replace(plan.wheel, build=replace(plan.build, cuda="11.8")),
        cuda=PlannedCuda("11.8"),
    )
    _, sizes = verify(wheel, cuda, "tinytorch", tmp_path, targets=TARGETS)
    assert sizes == {"tinytorch/lib/libkernels.so": {"7.0": 64, "8.6": 64, "8.6 PTX": 64}}
    with refused("wheel-check-failed") as caught:
        verify(wheel, cuda, "tinytorch", tmp_path, targets=(ArchTarget("9.0"),))
    assert "libkernels.so lacks 9.0 of 9.0\n" in str(caught.value)
    assert "libkernels.so has 7.0, 8.6" in str(caught.value)
    with refused("wheel-check-failed") as caught:
        verify(wheel, plan, "tinytorch", tmp_path)
    assert "libkernels.so: GPU code in a build without CUDA" in str(caught.value)


def test_an_environment_is_a_copy_of_an_unchanged_stored_environment(tmp_path: Path) -> None:
    store = tmp_path.parent / "environments"
    first = clean_environment.create_environment(PYTHON, tmp_path / "first", io.StringIO(), store)
    (template,) = store.iterdir()
    inode = template.stat().st_ino
    second = clean_environment.create_environment(PYTHON, tmp_path / "second", io.StringIO(), store)
    assert template.stat().st_ino == inode
    for venv in (first, second):
        assert installed_packages(venv) == installed_packages(environment_python(template / "made"))


@pytest.mark.parametrize(
    "damage", ["half", pytest.param("without its record", marks=pytest.mark.long)]
)
def test_a_damaged_stored_environment_is_made_again(tmp_path: Path, damage: str) -> None:
    store = tmp_path.parent / "environments"
    first = clean_environment.create_environment(PYTHON, tmp_path / "first", io.StringIO(), store)
    (template,) = store.iterdir()
    module = (
        clean_environment.site_packages(template / "made" / "bin" / "python")
        / "pip/_vendor/msgpack/ext.py"
    )
    if damage == "half":
        module.write_bytes(module.read_bytes()[:100])
    else:
        (template / "whole").unlink()
    again = clean_environment.create_environment(PYTHON, tmp_path / "again", io.StringIO(), store)
    assert installed_packages(again) == installed_packages(first)
    assert module.stat().st_size > 100
    assert [path.name for path in store.iterdir()] == [template.name]


def test_an_interpreter_without_venv_is_refused(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho 'No module named venv' >&2\nexit 1\n")
    python.chmod(0o755)
    with refused("venv-failed") as caught:
        clean_environment.create_environment(
            python, tmp_path / "venv", io.StringIO(), tmp_path / "empty"
        )
    assert "No module named venv" in str(caught.value)


def test_a_crash_names_the_check_it_happened_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = (
        "import os, sys",
        "sys.stderr.write('checking import\\nchecking matmul\\n')",
        "sys.stderr.flush()",
        "os.abort()",
    )
    (tmp_path / "crash.py").write_text("\n".join(lines))
    monkeypatch.setattr(clean_environment, "CHECK_SCRIPTS", tmp_path)
    with refused("check-script-stopped") as caught:
        clean_environment.run_checks(PYTHON, "crash.py", {}, io.StringIO())
    assert "crash.py stopped while checking matmul: " in str(caught.value)
    assert "SIGABRT" in str(caught.value)


@pytest.mark.parametrize("output", ["", "print('not results')"])
def test_a_script_that_ends_without_results_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, output: str
) -> None:
    """A library can end the program with success while it is imported."""
    (tmp_path / "early.py").write_text(f"import sys\n{output}\nsys.exit(0)\n")
    monkeypatch.setattr(clean_environment, "CHECK_SCRIPTS", tmp_path)
    with refused("check-script-stopped"):
        clean_environment.run_checks(PYTHON, "early.py", {}, io.StringIO())


def test_results_are_the_last_line() -> None:
    assert parse_results('a library says hello\n\n{"import": {"ok": true, "detail": "x"}}\n') == {
        "import": CheckResult(ok=True, detail="x")
    }


def test_a_clean_environment_borrows_nothing() -> None:
    borrowed = {
        "PYTHONPATH": "x",
        "LD_LIBRARY_PATH": "x",
        "VIRTUAL_ENV": "x",
        "PIP_TARGET": "x",
        "TORCH_HOME": "x",
    }
    harmless = {"PATH": "/bin", "PIP_INDEX_URL": "https://mirror", "PIP_PREFER_BINARY": "1"}
    assert clean_variables({**borrowed, **harmless}) == harmless


def test_a_wheel_that_pip_refuses_is_not_verified(tmp_path: Path) -> None:
    store = tmp_path.parent / "environments"
    venv = clean_environment.create_environment(PYTHON, tmp_path / "venv", io.StringIO(), store)
    wheel = tmp_path / "tinytorch-1.0-py3-none-any.whl"
    with refused("wheel-not-installable") as caught:
        clean_environment.install_packages(venv, [wheel], io.StringIO())
    assert f"pip cannot install {wheel} in a clean environment: " in str(caught.value)
