"""Try a finished wheel as a user meets it: its tags and RECORD, then a clean environment that computes."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO
from zipfile import ZipFile

from torchmill.config.arch_list import ArchTarget
from torchmill.config.model import Package, Plan
from torchmill.core.errors import VerifyError
from torchmill.wheel.pack.bundling import is_bundled
from torchmill.wheel.verify import clean_environment, library_checks, static_checks
from torchmill.wheel.verify.clean_environment import CheckResult
from torchmill.wheel.verify.device_code import (
    DeviceCode,
    device_code_problems,
    device_code_sizes,
    read_device_code_of_files,
)


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """What was found, for the manifest; every check in it held."""

    checks: Mapping[str, CheckResult]
    installed: tuple[str, ...]  # "torch==1.13.1+cpu": all that was in the clean environment
    interpreter: str  # "3.10.13"
    seconds: float
    device_code: Mapping[str, Mapping[str, int]] = field(
        default_factory=dict
    )  # library -> compute capability -> bytes


def verify_wheel(
    wheel: Path,
    plan: Plan,
    package: Package,
    *,
    python: Path,
    scratch: Path,
    extra: Sequence[Path | str],
    log: TextIO,
    targets: Sequence[ArchTarget] | None = None,
) -> VerifyReport:
    """Check `wheel` against its plan, install it with `extra` in a clean environment, and try it.

    `python` is the interpreter that the wheel is for; `extra` are wheels and requirements that the
    checks need beside it; the environment is made anew in `scratch`. What pip says goes to `log`.
    `targets` are the compute capabilities that were asked for; None: any will do.
    Raise VerifyError with every check that failed.
    """
    start = time.monotonic()
    interpreter = static_checks.probe_interpreter(python)
    found = static_checks.static_problems(wheel, plan, interpreter)
    if found:
        raise _verify_error(wheel, found)
    venv = clean_environment.create_environment(python, scratch / "venv", log)
    clean_environment.install_packages(venv, [wheel, *extra], log)
    site = clean_environment.site_packages(venv)
    with ZipFile(wheel) as archive:
        names = [info.filename for info in archive.infolist() if not info.is_dir()]
    code = read_device_code_of_files(site, (name for name in names if not is_bundled(Path(name).name)))
    found = [
        *library_checks.linking_problems(site, names, library_checks.platform_tags(wheel.name)[0]),
        *_gpu_code_problems(code, plan, targets),
    ]
    if found:
        raise _verify_error(wheel, found)
    checks = clean_environment.run_checks(
        venv, f"{package.checks}_checks.py", check_expectations(plan, package), log
    )
    found = [f"{name}: {check.detail}" for name, check in checks.items() if not check.ok]
    if found:
        raise _verify_error(wheel, found)
    seconds = time.monotonic() - start
    return VerifyReport(
        checks,
        clean_environment.installed_packages(venv),
        interpreter.release,
        seconds,
        device_code_sizes(code),
    )


def _gpu_code_problems(
    code: Sequence[DeviceCode], plan: Plan, targets: Sequence[ArchTarget] | None
) -> Iterator[str]:
    """Yield what is wrong with a wheel's code for GPUs."""
    if plan.build.cuda is None and code:
        libraries = ", ".join(dict.fromkeys(one.library for one in code))
        yield f"{libraries}: code for GPUs in a build without CUDA"
    if plan.build.cuda is not None and targets is not None:
        yield from device_code_problems(code, targets)


def check_expectations(plan: Plan, package: Package) -> dict[str, object]:
    """Return what the check scripts compare with, as they read it."""
    return {
        "package": package.name,
        "import": package.import_name,
        "version": plan.version,
        "commit": plan.commit,
        "cuda": plan.toolkit or plan.build.cuda,
        "capabilities": plan.set.get("TORCH_CUDA_ARCH_LIST"),
        "libraries": dict(plan.libraries),
        "switches": dict(plan.set),
        "base": plan.torch,
        "smoke": list(package.smoke),
    }


def _verify_error(wheel: Path, found: Sequence[str]) -> VerifyError:
    listed = "".join(f"\n  {each}" for each in found)
    number = f"{len(found)} checks" if len(found) > 1 else "one check"
    return VerifyError(
        f"{wheel.name}: {number} failed, so the wheel is not delivered: correct the build:{listed}"
    )
