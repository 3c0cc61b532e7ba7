"""Verify a finished wheel: read it, install it in a clean environment, and compute with it.

It is compared with the `PlannedWheel`, which has its name, tags and requirements as the plan gives
them. What fails is reported together, and the wheel is not delivered.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, TextIO
from zipfile import ZipFile

from millpress import library_checks
from millpress.bundling import is_bundled

from torchmill.config.arch_list import ArchTarget
from torchmill.config.package import Package
from torchmill.core.errors import VerifyError
from torchmill.host import environments
from torchmill.host.native import processor_flags
from torchmill.host.processor import processor_problems
from torchmill.wheel.planned_wheel import PlannedWheel
from torchmill.wheel.verify import clean_environment, device_code, static_checks
from torchmill.wheel.verify.clean_environment import CheckResult


class TargetMachine(NamedTuple):
    """How a wheel for another machine is tried on this one: by an emulator."""

    packages: Path  # the folder with its torch, which the wheel is tried with
    # Makes pip in an environment of this machine choose wheels for the other one.
    prepare: Callable[[Path], None]
    # Makes an environment in a new folder that shares the packages of another one and runs the
    # other machine's Python; returns that interpreter.
    emulate: Callable[[Path, Path], Path]


class VerifiedContents(NamedTuple):
    """The results of verifying a wheel, for its manifest."""

    checks: Mapping[str, CheckResult]  # by name
    code_sizes: Mapping[str, Mapping[str, int]]  # bytes of GPU code, by library and capability


def verify_wheel(
    wheel: Path,
    expected: PlannedWheel,
    package: Package,
    values: Mapping[str, object],
    *,
    python: Path,
    scratch: Path,
    extra: Sequence[Path | str],
    empty: Path,
    log: TextIO,
    targets: Sequence[ArchTarget] | None = None,
    machine: TargetMachine | None = None,
) -> VerifiedContents:
    """Check `wheel` against its plan, install it in a clean environment, and run its checks there.

    - `values`: expectations of the check scripts, such as the version of CUDA
    - `python`: the interpreter that the wheel is for
    - `scratch`: the folder in which the environment is created
    - `extra`: wheels and requirements that the checks need
    - `empty`: the folder of stored environments with nothing but pip, which are copied
    - `log`: takes the output of pip and of the check scripts
    - `targets`: the requested compute capabilities; None accepts any
    - `machine`: the machine that the wheel is for; None: this one

    The checks of the processor, of the wheel's files, of the installed libraries and the scripts
    are made in turn. Raises VerifyError with all problems of the first of these that finds any.
    """
    folder = scratch / "venv"
    lent_packages = expected.torch_folder  # that are not installed beside the wheel
    tried_python = python
    if machine is None:
        needed_flags = expected.processor.needs if expected.processor else ()
        _require(wheel, processor_problems(needed_flags, processor_flags()))
    else:
        lent_packages = machine.packages
        tried_python = machine.emulate(scratch / "emulated", folder)
    interpreter = static_checks.probe_interpreter(tried_python)
    _require(wheel, static_checks.static_problems(wheel, expected, interpreter))
    clean_python = clean_environment.create_environment(python, folder, log, empty)
    if lent_packages is not None:
        environments.add_package_folder(folder, lent_packages)
    if machine is not None:
        machine.prepare(folder)
    clean_environment.install_packages(clean_python, [wheel, *extra], log)
    site = clean_environment.site_packages(clean_python)
    if lent_packages is not None:
        # The run paths of the wheel's libraries lead to NVIDIA's packages beside it.
        nvidia = lent_packages / library_checks.NVIDIA_FOLDER
        if nvidia.is_dir():
            (site / nvidia.name).symlink_to(nvidia)
    with ZipFile(wheel) as archive:
        names = [info.filename for info in archive.infolist() if not info.is_dir()]
    # Bundled libraries were compiled by others, for lists of their own.
    built_names = [name for name in names if not is_bundled(Path(name).name)]
    code = device_code.read_device_code_of_files(site, built_names)
    platform_tag = library_checks.platform_tags(wheel.name)[0]
    problems = library_checks.linking_problems(site, names, platform_tag, lent_packages)
    if expected.build.cuda is None and code:
        problems.append(f"{', '.join(code)}: GPU code in a build without CUDA")
    has_kernels = expected.build.cuda is not None and package.kernels.device_code
    if has_kernels and targets is not None:
        problems += device_code.device_code_problems(code, targets)
    _require(wheel, problems)
    script = f"{package.checks.script}_checks.py"
    runner = clean_python if machine is None else tried_python
    checks = clean_environment.run_checks(runner, script, values, log)
    _require(wheel, [f"{name}: {check.detail}" for name, check in checks.items() if not check.ok])
    return VerifiedContents(checks, device_code.device_code_sizes(code))


def _require(wheel: Path, problems: Sequence[str]) -> None:
    """Raise VerifyError if there are problems."""
    if not problems:
        return
    listed = "".join(f"\n  {problem}" for problem in problems)
    count = f"{len(problems)} checks" if len(problems) > 1 else "one check"
    raise VerifyError(
        f"{wheel.name}: {count} failed, so the wheel is not delivered: correct the build:{listed}",
        code="wheel-check-failed",
    )
