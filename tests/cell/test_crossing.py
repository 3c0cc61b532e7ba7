"""The target's torch and Python of a crossed build."""

import dataclasses
import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from tests.support.machines import file
from tests.support.plans import plan_torch
from tests.support.refusals import refused
from torchmill.cell import crossing
from torchmill.config.facts import Facts
from torchmill.core.stat_cache import StatCache
from torchmill.host import environments
from torchmill.host.host import Compiler, Host, HostCrossing, HostPlatform, HostResources
from torchmill.plan.build_options import PYPI, Options
from torchmill.plan.plan import Plan

PYTHON = f"3.{sys.version_info.minor}"
MEANS = HostCrossing(
    compilers={"aarch64-linux-gnu-g++": Compiler("gcc", "12.2.0")},
    emulator="/usr/bin/qemu-aarch64-static",
    system="/srv/root of arm",
    interpreters={PYTHON: f"/srv/root/usr/bin/python{PYTHON}"},
)
HOST = Host(
    "x86_64",
    "linux",
    HostResources(4, 2**34),
    platform=HostPlatform(glibc="2.36"),
    complete=True,
    crossings={"aarch64": MEANS},
)


@pytest.fixture
def plan(shipped: Facts) -> Plan:
    """Return the plan of an extension for aarch64, for the Python that runs the tests."""
    options = Options(torch=PYPI, arch_list="9.0")
    return plan_torch(shipped, f"scatter-{PYTHON}-cu130-aarch64", "v2.13.0", HOST, options=options)


def with_means(**changes: object) -> Host:
    """Return the host with other means to build for aarch64."""
    means = dataclasses.replace(MEANS, **changes)  # type: ignore[arg-type]
    return dataclasses.replace(HOST, crossings={"aarch64": means})


def test_each_torch_and_machine_has_an_environment(plan: Plan, tmp_path: Path) -> None:
    cache = StatCache(tmp_path / "stat-cache.json")
    store = tmp_path / "environments"
    first = crossing.target_environment(plan, store, cache)
    assert first.parent == store
    assert crossing.target_environment(plan, store, cache) == first
    wheel = file(tmp_path / "torch-2.13.0-cp311-cp311-linux_aarch64.whl", "a wheel")
    given = dataclasses.replace(plan, target_torch=str(wheel))
    second = crossing.target_environment(given, store, cache)
    wheel.write_text("another wheel of the same name")
    third = crossing.target_environment(given, store, cache)
    assert len({first, second, third}) == 3


def test_an_emulated_environment_runs_the_targets_python(plan: Plan, tmp_path: Path) -> None:
    packages = tmp_path / "venv/site-packages"
    program = crossing.make_emulated_environment(tmp_path / "emulated", packages, plan, HOST)
    assert program.read_text() == (
        "#!/bin/sh\n"
        "exec /usr/bin/qemu-aarch64-static -cpu neoverse-n1 "
        f"-L {tmp_path}/emulated/system -0 {program} "
        f'/srv/root/usr/bin/python{PYTHON} "$@"\n'
    )
    settings = (tmp_path / "emulated/pyvenv.cfg").read_text()
    assert settings == "home = /srv/root/usr/bin\n"
    site = tmp_path / f"emulated/lib/python{PYTHON}/site-packages"
    assert site.readlink() == packages
    again = crossing.make_emulated_environment(tmp_path / "emulated", packages, plan, HOST)
    assert again == program


def test_the_emulated_system_has_a_processor_of_the_target(plan: Plan, tmp_path: Path) -> None:
    """A torch reads which processor it runs on, and crashes if it reads of one for x86."""
    root = tmp_path / "root"
    file(root / "lib/ld-linux-aarch64.so.1", "the loader")
    file(root / "proc/cpuinfo", "of whoever made the root")
    means = dataclasses.replace(MEANS, system=str(root))
    system = crossing.make_emulated_system(tmp_path / "system", plan, means)
    assert (system / "lib/ld-linux-aarch64.so.1").read_text() == "the loader"
    text = (system / "proc/cpuinfo").read_text()
    assert text.count("CPU implementer\t: 0x41") == os.cpu_count()
    assert "processor\t: 0\n" in text
    assert (root / "proc/cpuinfo").read_text() == "of whoever made the root"


def fake_emulator(folder: Path, code: str) -> str:
    """Make a program in place of QEMU, and return its path."""
    path = folder / "qemu"
    path.write_text(f"#!/bin/sh\n{code}\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(
    ("code", "problem"),
    [
        ("echo cannot load libz.so.1 >&2; exit 127", "cannot load libz.so.1"),
        ("echo 3.1", "it is Python 3.1"),
    ],
)
def test_a_python_that_does_not_run_is_refused(
    plan: Plan, tmp_path: Path, code: str, problem: str
) -> None:
    with refused("target-python-fails") as caught:
        crossing.prove_target_python(plan, with_means(emulator=fake_emulator(tmp_path, code)))
    assert problem in str(caught.value)


def test_a_python_that_runs_is_proven(plan: Plan, tmp_path: Path) -> None:
    emulator = fake_emulator(tmp_path, f"echo {PYTHON}")
    crossing.prove_target_python(plan, with_means(emulator=emulator))


def test_headers_of_debian_need_a_part_for_the_target(plan: Plan, tmp_path: Path) -> None:
    interpreter = file(tmp_path / f"bin/python{PYTHON}")
    header = tmp_path / f"include/python{PYTHON}/pyconfig.h"
    file(header, "#define SIZEOF_LONG 8\n")
    crossing.require_target_headers(interpreter, plan)
    part = f"aarch64-linux-gnu/python{PYTHON}/pyconfig.h"
    header.write_text(f"# elif defined(__aarch64__)\n#  include <{part}>\n")
    with refused("target-headers-missing"):
        crossing.require_target_headers(interpreter, plan)
    file(tmp_path / "include" / part)
    crossing.require_target_headers(interpreter, plan)


def write_wheel(path: Path, machine: str, requirements: tuple[str, ...]) -> None:
    """Write a wheel with a module that names the machine that it is for."""
    name, version, *tags = path.stem.split("-")
    lines = [f"Requires-Dist: {requirement}\n" for requirement in requirements]
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{''.join(lines)}"
    folder = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{name}/machine.txt", machine)
        archive.writestr(f"{folder}/METADATA", metadata)
        archive.writestr(f"{folder}/WHEEL", f"Wheel-Version: 1.0\nTag: {'-'.join(tags)}\n")
        archive.writestr(f"{folder}/RECORD", "")


@pytest.mark.skipif(sys.platform != "linux", reason="builds are crossed on Linux only")
def test_pip_chooses_wheels_for_the_target(plan: Plan, tmp_path: Path) -> None:
    """Markers and tags are those of the target, although pip runs on this machine."""
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    needs = ("onarm; platform_machine == 'aarch64'", "elsewhere; platform_machine != 'aarch64'")
    tag = f"cp3{sys.version_info.minor}-cp3{sys.version_info.minor}"
    for machine in ("x86_64", "aarch64"):
        write_wheel(wheels / f"thing-1-{tag}-manylinux2014_{machine}.whl", machine, needs)
    write_wheel(wheels / "onarm-1-py3-none-any.whl", "any", ())
    environment = tmp_path / "target"
    interpreter = Path(sys.base_prefix, "bin", f"python{PYTHON}")
    environments.make_environment(interpreter, environment, tmp_path / "store")
    crossing.pretend_target(environment, plan)
    python = str(environments.environment_python(environment))
    probe = "import platform, sysconfig; print(platform.machine(), sysconfig.get_platform())"
    done = subprocess.run([python, "-I", "-c", probe], capture_output=True, text=True, check=True)
    assert done.stdout == "aarch64 linux-aarch64\n"
    links = ["--no-index", "--find-links", str(wheels)]
    crossing.install_for_target(environment, [*links, "thing==1"])
    site = environments.packages_folder(environment, PYTHON)
    assert (site / "thing/machine.txt").read_text() == "aarch64"
    assert (site / "onarm-1.dist-info").is_dir()
    with refused("requirement-missing"):
        crossing.install_for_target(environment, [*links, "thing==2"])
    assert sysconfig.get_platform() != "linux-aarch64", "this process is as before"
