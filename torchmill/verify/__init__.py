"""Try a finished wheel as a user meets it: its tags and RECORD, then a clean environment that computes."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO
from zipfile import ZipFile

from torchmill.capabilities.targets import Target
from torchmill.errors import VerifyError
from torchmill.model import Package, Plan
from torchmill.pack.bundling import came_along
from torchmill.verify import devicecode, linking, static, tagged, trial
from torchmill.verify.devicecode import Code
from torchmill.verify.trial import Check


@dataclass(frozen=True, slots=True)
class Report:
    """What was found, for the manifest; every check in it held."""

    checks: Mapping[str, Check]
    installed: tuple[str, ...]  # "torch==1.13.1+cpu": all that was in the clean environment
    interpreter: str  # "3.10.13"
    seconds: float
    device_code: Mapping[str, Mapping[str, int]] = field(
        default_factory=dict
    )  # library -> compute capability -> bytes


def verify(
    wheel: Path,
    plan: Plan,
    package: Package,
    *,
    python: Path,
    scratch: Path,
    extra: Sequence[Path | str],
    log: TextIO,
    targets: Sequence[Target] | None = None,
) -> Report:
    """Check `wheel` against its plan, install it with `extra` in a clean environment, and try it.

    `python` is the interpreter that the wheel is for; `extra` are wheels and requirements that the
    checks need beside it; the environment is made anew in `scratch`. What pip says goes to `log`.
    `targets` are the compute capabilities that were asked for; None: any will do.
    Raise VerifyError with every check that failed.
    """
    start = time.monotonic()
    interpreter = static.interpreter(python)
    found = static.problems(wheel, plan, interpreter)
    if found:
        raise _failed(wheel, found)
    venv = trial.environment(python, scratch / "venv", log)
    trial.install(venv, [wheel, *extra], log)
    site = trial.packages(venv)
    with ZipFile(wheel) as archive:
        names = [info.filename for info in archive.infolist() if not info.is_dir()]
    code = devicecode.of_files(site, (name for name in names if not came_along(Path(name).name)))
    found = [*linking.problems(site, names, tagged.platforms(wheel.name)[0]), *_of_code(code, plan, targets)]
    if found:
        raise _failed(wheel, found)
    checks = trial.checks(venv, f"{package.checks}_checks.py", expectations(plan, package), log)
    found = [f"{name}: {check.detail}" for name, check in checks.items() if not check.ok]
    if found:
        raise _failed(wheel, found)
    seconds = time.monotonic() - start
    return Report(checks, trial.installed(venv), interpreter.release, seconds, devicecode.sizes(code))


def _of_code(code: Sequence[Code], plan: Plan, targets: Sequence[Target] | None) -> Iterator[str]:
    """Yield what is wrong with a wheel's code for GPUs."""
    if plan.build.cuda is None and code:
        libraries = ", ".join(dict.fromkeys(one.library for one in code))
        yield f"{libraries}: code for GPUs in a build without CUDA"
    if plan.build.cuda is not None and targets is not None:
        yield from devicecode.problems(code, targets)


def expectations(plan: Plan, package: Package) -> dict[str, object]:
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


def _failed(wheel: Path, found: Sequence[str]) -> VerifyError:
    listed = "".join(f"\n  {each}" for each in found)
    number = f"{len(found)} checks" if len(found) > 1 else "one check"
    return VerifyError(
        f"{wheel.name}: {number} failed, so the wheel is not delivered: correct the build:{listed}"
    )
