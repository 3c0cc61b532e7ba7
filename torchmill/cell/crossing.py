"""What a crossed build needs beside its own environment: the target's torch, and its Python.

The *target* is the machine that the wheel is for. Its torch is installed in an environment of its
own, which all crossed builds against that torch share. The interpreter of that environment is one
of this machine, because only pip runs in it; the target's Python is run by QEMU, in an *emulated*
environment that has the same packages.
"""

import contextlib
import io
import os
import shlex
from collections.abc import Callable
from functools import partial
from pathlib import Path

from torchmill.core import locks, retries
from torchmill.core.errors import HostError
from torchmill.core.lenient_paths import is_file, read_text
from torchmill.core.process import CommandError, ask, stream
from torchmill.core.stat_cache import StatCache, digest_data
from torchmill.core.system_errors import blame_disk, report_unwritable
from torchmill.host import crossing, environments
from torchmill.host.disk_usage import list_children
from torchmill.host.environments import packages_folder
from torchmill.host.host import Host, HostCrossing
from torchmill.plan.plan import Plan
from torchmill.toolchain import crossed_python
from torchmill.wheel.verify.clean_environment import clean_variables

CROSSED_PYTHON = Path(crossed_python.__file__).parent  # for PYTHONPATH of a crossed build
_PATH_FILE = "torchmill_target.pth"
_DIGITS = 16  # of the digest in the name of an environment
_WAIT_NOTE = "waiting for another build, which installs the torch of the target"
# Modules of the standard library that need the system's libraries: if they load, torch will.
_PROBE = "import ctypes, sys, zlib; print('%d.%d' % sys.version_info[:2])"


def crossing_of(plan: Plan, host: Host) -> HostCrossing:
    """Return what this machine has for the target of a crossed build."""
    return host.crossings.get(plan.build.arch, HostCrossing())


def target_environment(plan: Plan, store: Path, stat_cache: StatCache) -> Path:
    """Return the folder of the environment with the target's torch; it need not exist.

    `store` is the folder of stored environments. The environment of another torch, Python or
    machine is another one.
    """
    torch = plan.target_torch or ""
    digest = (stat_cache.digest(Path(torch)) or "") if torch.endswith(".whl") else ""
    key = digest_data([plan.build.python, plan.build.arch, torch, digest])
    return store / f"target-{key[:_DIGITS]}"


def provide_target(
    plan: Plan, environment: Path, interpreter: Path, store: Path, note: Callable[[str], None]
) -> None:
    """Install the target's torch, with all that it requires, unless it is there.

    `interpreter` is the one of this machine for which the session's environment was made. Raises
    HostError if pip finds no such torch, or for a full disk.
    """
    purpose = f"target {plan.target_torch}"
    lock = environment.with_name(f".lock-{environment.name}")
    with locks.wait_for_folder(lock, plan.identifier, lambda _: note(_WAIT_NOTE)):
        if environments.is_unchanged(environment, purpose):
            return
        note(f"installing the {plan.target_torch} of {plan.build.arch} in {environment}")
        with report_unwritable(environment):
            environments.make_environment(interpreter, environment, store)
            pretend_target(environment, plan)
        install_for_target(environment, [plan.target_torch or ""])
        environments.stamp_environment(environment, purpose)


def pretend_target(environment: Path, plan: Plan) -> None:
    """Make pip in an environment choose wheels for the target of a plan.

    Every start of its interpreter reads the file: https://docs.python.org/3/library/site.html
    """
    variables = {
        "_PYTHON_HOST_PLATFORM": plan.variables["_PYTHON_HOST_PLATFORM"],
        "TORCHMILL_TARGET_MACHINE": plan.variables["TORCHMILL_TARGET_MACHINE"],
    }
    script = str(CROSSED_PYTHON / "sitecustomize.py")
    line = f"import os, runpy; os.environ.update({variables!r}); runpy.run_path({script!r})\n"
    packages = packages_folder(environment, plan.build.python)
    (packages / _PATH_FILE).write_text(line, encoding="utf-8")


def install_for_target(environment: Path, requirements: list[str]) -> None:
    """Install requirements in an environment whose pip chooses wheels for the target.

    Raises HostError if pip fails.
    """
    python = str(environments.environment_python(environment))
    words = ["install", "--no-input", "--no-compile", "--only-binary", ":all:", *requirements]
    run_pip = partial(
        stream,
        [python, "-I", "-m", "pip", *words],
        cwd=None,
        env=environments.pip_variables(clean_variables()),
        log=io.StringIO(),
        on_line=lambda _: None,
    )
    try:
        retries.repeat(run_pip, environments.judge_pip, "pip")
    except CommandError as error:
        full_disk = blame_disk(error.output, environment)
        if full_disk is not None:
            raise full_disk from None
        raise HostError(
            f"pip cannot install {shlex.join(requirements)} for the target: "
            f"{environments.pip_reason(error)}: name another torch with --torch",
            code="requirement-missing",
        ) from None


def make_emulated_environment(folder: Path, packages: Path, plan: Plan, host: Host) -> Path:
    """Make an environment whose interpreter is the target's, run by QEMU; return the interpreter.

    `packages` is the folder of packages that it shares with an environment of this machine.
    """
    emulation = crossing_of(plan, host)
    target_python = Path(emulation.interpreters[plan.build.python])
    (folder / "bin").mkdir(parents=True, exist_ok=True)
    # CPython takes the folder above its program for an environment if this file is there, and
    # finds its own modules beside `home`: https://peps.python.org/pep-0405/
    (folder / "pyvenv.cfg").write_text(f"home = {target_python.parent}\n", encoding="utf-8")
    site = packages_folder(folder, plan.build.python)
    site.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        site.symlink_to(packages)
    system = make_emulated_system(folder / "system", plan, emulation)
    program = folder / "bin" / "python"
    words = emulator_words(plan, emulation, system, str(program))
    script = f'#!/bin/sh\nexec {shlex.join([*words, str(target_python)])} "$@"\n'
    program.write_text(script, encoding="utf-8")
    program.chmod(0o755)
    return program


def make_emulated_system(folder: Path, plan: Plan, emulation: HostCrossing) -> Path:
    """Make a folder with the target's system, and its /proc/cpuinfo; return the folder.

    QEMU opens a file of this folder in place of that with the same path on this machine.
    """
    (folder / "proc").mkdir(parents=True, exist_ok=True)
    for entry in list_children(Path(emulation.system)):
        with contextlib.suppress(FileExistsError):
            (folder / entry.name).symlink_to(entry)
    # The folders of this machine's cores in /sys stay visible, and so there must be as many cores.
    cores = os.cpu_count() or 1
    cpuinfo = crossing.emulated_cpuinfo(plan.build.arch, cores)
    (folder / "proc/cpuinfo").write_text(cpuinfo, encoding="utf-8")
    return folder


def emulator_words(plan: Plan, emulation: HostCrossing, system: Path, name: str) -> list[str]:
    """Return the command that runs a program of the target; `name` is what it is called by.

    -L is the folder in which QEMU looks for files first, among them the loader and the libraries.
    https://www.qemu.org/docs/master/user/main.html
    """
    processor = crossing.emulated_processor(plan.build.arch)
    return [emulation.emulator, "-cpu", processor, "-L", str(system), "-0", name]


def prove_target_python(plan: Plan, host: Host) -> None:
    """Raise HostError unless QEMU runs the target's Python, and that is of the right version."""
    emulation = crossing_of(plan, host)
    path = emulation.interpreters[plan.build.python]
    words = emulator_words(plan, emulation, Path(emulation.system), path)
    problem = ""
    try:
        version = ask([*words, path, "-I", "-c", _PROBE]).strip()
        if version != plan.build.python.rstrip("t"):
            problem = f"it is Python {version}"
    except CommandError as error:
        problem = error.output.strip().rpartition("\n")[2] or str(error)
    if problem:
        raise HostError(
            f"{path} of {plan.build.arch} cannot be used to try the wheel ({problem}): name a folder "
            f"with a whole system of {plan.build.arch} in {crossing.ROOT_VARIABLE}",
            code="target-python-fails",
        )


def require_target_headers(interpreter: Path, plan: Plan) -> None:
    """Raise HostError if the headers of an interpreter are not for the target, too.

    The headers of a CPython are the same for all 64-bit machines with Linux, except for some lines of
    pyconfig.h that do not matter to extensions (docs/explanation/crossed-builds.md). Debian's
    pyconfig.h includes another one for each machine, which a package of its own brings.
    https://wiki.debian.org/Python/MultiArch
    """
    python = plan.build.python
    folder = interpreter.resolve().parents[1] / "include"
    triplet = crossing.triplet(plan.build.arch)
    dispatch = f"<{triplet}/python{python}/pyconfig.h>"
    if dispatch not in read_text(folder / f"python{python}" / "pyconfig.h"):
        return
    if is_file(folder / dispatch.strip("<>")):
        return
    raise HostError(
        f"{interpreter} is Debian's, and its headers lack the part for {plan.build.arch} "
        f"({folder / dispatch.strip('<>')}): `dpkg --add-architecture arm64`, `apt-get update` and "
        f"`apt-get install libpython{python}-dev:arm64` bring it, or build with another CPython "
        f"{python} (`uv python install {python}`)",
        code="target-headers-missing",
    )
