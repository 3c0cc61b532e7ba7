"""Builds for another machine through the real nox, with a stand-in for the container engine."""

import json
import os
import platform
import re
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support import stand_in_engine
from tests.support.commands import ROOT, run
from tests.support.documents import assert_fits
from tests.support.refusals import refused
from tests.support.sampled import THIS, Sample, fetched
from tools.requirements_hook import read_requirements
from torchmill.cell.containers import emulation
from torchmill.cell.containers.cross import CrossBuild
from torchmill.commands import cross_build
from torchmill.config.facts import Facts
from torchmill.config.release_lookup import find_release
from torchmill.host.description import load_host
from torchmill.plan import cell_lookup
from torchmill.plan.build_options import Options

OTHER = "aarch64" if platform.machine() != "aarch64" else "x86_64"
OWN = platform.machine()
SESSION = f"wheel-{THIS}-cpu-{OTHER}"
SAMPLE = {"TORCHMILL_CONFIGS": str(ROOT / "sample" / "build_configs"), "TORCHMILL_TAG": "v1.0.0"}


def path(folder: Path) -> str:
    """Return a PATH with nothing but the stand-in, this Python and the system, and none of its engines."""
    tools = folder / "tools"
    tools.mkdir(exist_ok=True)
    for name in (
        "git",
        "sh",
        "gcc",
        "g++",
        "cc",
        "c++",
        "uname",
        "ld",
        "as",
        "flock",
        "dirname",
        "ccache",
    ):
        for place in ("/usr/bin", "/bin"):
            if Path(place, name).exists() and not (tools / name).exists():
                (tools / name).symlink_to(Path(place, name))
    return os.pathsep.join((str(folder), str(Path(sys.executable).parent), str(tools)))


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory, upstream: Path, envs: Path) -> Sample:
    return fetched(tmp_path_factory.mktemp("foreign"), upstream, envs)


def told(orders: Path) -> list[list[str]]:
    return [json.loads(line) for line in orders.read_text(encoding="utf-8").splitlines()]


@pytest.mark.long
def test_a_wheel_is_built_where_the_container_is(sample: Sample, tmp_path: Path) -> None:
    orders = stand_in_engine.podman(tmp_path, OTHER, OTHER)
    sample.env |= {
        "PATH": path(tmp_path),
        "TORCHMILL_IMAGE": f"debian-{OTHER}",
        "PIP_TIMEOUT": "60",
    }
    done = sample.nox("-s", SESSION, "--", "--label=none", "--set=CFLAGS=-O1 -g")
    assert done.returncode == 0, done.stderr
    assert (
        f"{SESSION} is built in a container for {OTHER} (podman 4.3.1, image debian-{OTHER})"
        in done.stderr
    )
    assert "nothing is emulated" in done.stderr
    (wheel,) = sample.wheels()
    assert wheel.startswith("tinytorch-1.0.0-")
    manifest = sample.manifest(wheel)
    assert manifest["switches"]["CFLAGS"].startswith("-O1 -g")
    inner = sample.home / ".torchmill" / OTHER
    assert (sample.home / "dist" / manifest["guard"]["timeline"]).resolve().parent == inner / "logs"
    assert [folder.name for folder in (inner / "trees").iterdir()] == ["v1.0.0"]
    assert not (sample.home / ".torchmill" / "trees").exists()
    assert (sample.home / "cache" / f"torchmill-{OTHER}" / "gates").is_dir()
    *_, main, after = told(orders)
    assert [main[0], after[:2]] == ["run", ["rm", "--force"]]
    assert main[main.index("PIP_TIMEOUT") - 1] == "--env"


def test_what_an_image_of_ones_own_lacks_the_builder_has(sample: Sample, tmp_path: Path) -> None:
    stand_in_engine.podman(tmp_path, OTHER, OTHER)
    env = sample.env | {"PATH": path(tmp_path), "TORCHMILL_IMAGE": f"debian-{OTHER}"}
    (tmp_path / "tools" / "git").unlink()
    done = run("nox", "-s", SESSION, "--", "--set=CXXFLAGS=-O1", home=sample.home, env=env)
    assert done.returncode == 1
    assert "`git` is not on PATH" in done.stderr
    assert (
        f"where debian-{OTHER} lacks something, make one that has it: `invoke image --kind builder"
        in done.stderr
    )


def test_a_pip_that_does_not_answer_ends_no_build(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TORCHMILL_ANSWER", "0.001")
    assert cross_build._read_pip_settings() == ""
    warning = capsys.readouterr().err
    assert "warning: the container gets no setting of pip's files" in warning
    assert "did not answer within 0.001 s" in warning


def test_a_build_number_is_for_conda_packages_alone(sample: Sample) -> None:
    done = sample.nox("-s", f"conda-{THIS}-cpu-{OTHER}", "--", "--build-number=one")
    assert done.returncode == 1
    assert "--build-number one: give a whole number" in done.stderr
    done = sample.nox("-s", SESSION, "--", "--build-number=1")
    assert done.returncode == 1
    assert "there is no option --build-number (`nox" in done.stderr


@pytest.mark.parametrize(
    ("machine", "image", "sentence"),
    [
        ("aarch64", "", "image --kind builder --tag v1.0.0 --arch"),
        ("aarch64", "debian-13", "with --image NAME): invoke image --kind builder"),
        ("riscv64", f"debian-{OTHER}", f"debian-{OTHER} is an image for riscv64, not for {OTHER}"),
    ],
)
def test_an_image_that_is_not_there_or_elsewhere(
    sample: Sample, tmp_path: Path, machine: str, image: str, sentence: str
) -> None:
    stand_in_engine.podman(tmp_path, OTHER, machine)
    env = sample.env | {"PATH": path(tmp_path), "TORCHMILL_IMAGE": image}
    done = run("nox", "-s", SESSION, home=sample.home, env=env)
    assert done.returncode == 1
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr


def test_a_machine_without_an_engine(sample: Sample, tmp_path: Path) -> None:
    done = run("nox", "-s", SESSION, home=sample.home, env=sample.env | {"PATH": path(tmp_path)})
    assert done.returncode == 1
    assert "install a container engine" in done.stderr
    plan = run(
        "invoke", "plan", SESSION, home=sample.home, env=sample.env | {"PATH": path(tmp_path)}
    )
    assert plan.returncode == 0, plan.stderr
    assert (
        "in a container, which is not possible: none of docker, podman and buildah is on PATH"
        in " ".join(plan.stdout.split())
    )


def test_what_was_not_fetched_is_told_first(tmp_path: Path) -> None:
    stand_in_engine.podman(tmp_path, OTHER, OTHER)
    env = SAMPLE | {"PATH": path(tmp_path), "TORCHMILL_IMAGE": f"debian-{OTHER}"}
    done = run("nox", "-s", SESSION, home=tmp_path / "home", env=env)
    assert done.returncode == 1
    assert "tinytorch v1.0.0 is not fetched: run `invoke fetch --tag v1.0.0`" in done.stderr


def test_the_plan_shows_the_container(sample: Sample, tmp_path: Path) -> None:
    stand_in_engine.podman(tmp_path, OTHER, OTHER)
    env = sample.env | {"PATH": path(tmp_path), "TORCHMILL_IMAGE": f"debian-{OTHER}"}
    words = ("invoke", "plan", SESSION, "--json", "--label=none")
    document = json.loads(run(*words, home=sample.home, env=env).stdout)
    assert_fits(document, "plan")
    container = document["container"]
    assert (container["image"], container["arch"]) == (f"debian-{OTHER}", OTHER)
    assert container["commands"][0][-2:] == ["--", "--label=none"]
    assert {
        "source": str(sample.home / "dist"),
        "target": "/torchmill/dist",
        "writable": True,
    } in container["mounts"]
    text = run(*words[:3], home=sample.home, env=env).stdout
    assert f"\nin a container\n  {SESSION} is built in a container for {OTHER} (podman" in text
    assert "/podman run " not in text
    assert "/podman run " in run(*words[:3], "--all", home=sample.home, env=env).stdout


def test_a_name_in_full_means_a_container_of_the_machines_own_kind(
    sample: Sample, tmp_path: Path
) -> None:
    stand_in_engine.podman(tmp_path, OWN, OWN)
    env = sample.env | {"PATH": path(tmp_path), "TORCHMILL_IMAGE": "debian"}
    native_name = SESSION.replace(OTHER, OWN)
    text = run("invoke", "plan", native_name, home=sample.home, env=env).stdout
    assert f"\nin a container\n  {native_name} is built in a container for {OWN} (podman" in text
    assert "follows the glibc of that image" in text
    assert f"`invoke plan {native_name} --tag=v1.0.0 --all`" in text
    for words, expected in {
        ("doctor", native_name): "run by the processor",
        ("build", native_name, "--dry-run"): f"nox -s {native_name}",
    }.items():
        assert expected in run("invoke", *words, home=sample.home, env=env).stdout


@pytest.mark.skipif(
    platform.system() != "Linux", reason="the kernel of a virtual machine decides elsewhere"
)
@pytest.mark.skipif(
    emulation.explain_no_emulation(OTHER, emulation.read_binfmt_entries()) is None,
    reason=f"this kernel runs programs for {OTHER}",
)
def test_a_kernel_that_does_not_run_it_is_told_with_the_cure(
    sample: Sample, tmp_path: Path
) -> None:
    stand_in_engine.podman(tmp_path, platform.machine(), OTHER)
    env = sample.env | {"PATH": path(tmp_path), "TORCHMILL_IMAGE": f"debian-{platform.machine()}"}
    done = run("nox", "-s", SESSION, home=sample.home, env=env)
    assert done.returncode == 1
    assert f"does not run programs for {OTHER}: register QEMU with it" in done.stderr


def test_what_the_suite_needs_in_a_container_is_what_requirements_install() -> None:
    script = (ROOT / "torchmill/cell/containers/inside.sh").read_text(encoding="utf-8")
    needed = re.findall(
        r'"(\w+)"', next(line for line in script.splitlines() if line.startswith("needed"))
    )
    lines = read_requirements((ROOT / "requirements.txt").read_text(encoding="utf-8"))
    for library in ("millguard", "millpress"):
        settings = tomllib.loads(
            (ROOT / "packages" / library / "pyproject.toml").read_text("utf-8")
        )
        lines += settings["project"]["dependencies"]
    required = {canonicalize_name(Requirement(line).name) for line in lines}
    owners = packages_distributions()  # does not know those of this checkout, which are editable
    assert needed
    for module in needed:  # one that nothing installs would let each run install all of them again
        assert required & {canonicalize_name(owner) for owner in owners.get(module, [module])}, (
            module
        )


def test_options_of_the_container_and_of_the_build_are_told_apart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TORCHMILL_IMAGE", "mine")
    assert cross_build.parse_options(["--jobs", "2"], "nox")[1] == "mine"
    words = ["--image=theirs", "--label", "none", "--engine", "podman"]
    options, image, engine_name = cross_build.parse_options(words, "nox")
    assert (image, engine_name, options.label) == ("theirs", "podman", "none")
    for words in (["--image"], ["--jbos=2"]):
        with refused("invalid-option"):
            cross_build.parse_options(words, "nox")


def test_the_image_that_has_what_one_of_ones_own_lacks_is_of_the_same_toolkit(
    shipped: Facts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arch = "x86_64"
    orders = stand_in_engine.podman(tmp_path, "aarch64", arch)
    monkeypatch.setenv("PATH", path(tmp_path))
    cell = cell_lookup.find_cell(
        shipped, "wheel-3.10-cu118", arch, find_release(shipped, "torch", "v2.0.0")
    )
    host = load_host(ROOT / "tests/golden/hosts/debian-12.toml")
    goal = CrossBuild(cell, "wheel-3.10-cu118", options=Options(), image="mine")
    runs = [cross_build.prepare_run(ROOT, shipped, goal, host) for _ in range(2)]
    assert (
        runs[0].builder
        == "invoke image --kind builder --tag v2.0.0 --arch x86_64 --toolkit 11.8 --build"
    )
    assert runs[0].container.name != runs[1].container.name, "each removes its own at its end"
    assert not any(words[0] == "run" for words in told(orders))


def test_an_environment_without_pip_has_no_settings_of_pip(
    shipped: Facts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing asks for them there: uv makes such environments, and the program would fail."""
    stand_in_engine.podman(tmp_path, "x86_64", "aarch64")
    monkeypatch.setenv("PATH", path(tmp_path))
    monkeypatch.setattr("torchmill.core.programs.has_pip", lambda: False)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python-without-pip"))
    release = find_release(shipped, "torch", "v2.0.0")
    cell = cell_lookup.find_cell(shipped, "wheel-3.10-cpu-aarch64", "x86_64", release)
    goal = CrossBuild(cell, "wheel-3.10-cpu", options=Options(), image="mine")
    host = load_host(ROOT / "tests/golden/hosts/debian-12.toml")
    assert cross_build.prepare_run(ROOT, shipped, goal, host).container.image == "mine"


@pytest.mark.parametrize("has_file", [False, True])
def test_compilers_that_are_emulated_against_an_images_label_are_told(
    tmp_path: Path, has_file: bool
) -> None:
    (tmp_path / "python3").write_text("#!/bin/sh\n")
    (tmp_path / "python3").chmod(0o755)
    if has_file:
        (tmp_path / "cross").mkdir()
    script = ROOT / "torchmill/cell/containers/inside.sh"
    variables = {
        "PATH": f"{tmp_path}:/usr/bin:/bin",
        "COMPILER_PATH": str(tmp_path / "cross"),
        "NOX_ENVDIR": "envs",
    }
    argv = ["/bin/sh", str(script), str(tmp_path / "suite"), "wheel-3.10-cpu"]
    done = subprocess.run(argv, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert ("its compilers are emulated, too" in done.stderr) is not has_file
