"""Try a finished wheel as a user meets it: its tags and RECORD, then a clean environment that computes."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from torchwright.errors import VerifyError
from torchwright.model import Package, Plan
from torchwright.verify import static, trial
from torchwright.verify.trial import Check


@dataclass(frozen=True, slots=True)
class Report:
    """What was found, for the manifest; every check in it held."""

    checks: Mapping[str, Check]
    installed: tuple[str, ...]  # "torch==1.13.1+cpu": all that was in the clean environment
    interpreter: str  # "3.10.13"
    seconds: float


def verify(
    wheel: Path,
    plan: Plan,
    package: Package,
    *,
    python: Path,
    scratch: Path,
    extra: Sequence[Path | str],
    log: TextIO,
) -> Report:
    """Check `wheel` against its plan, install it with `extra` in a clean environment, and try it.

    `python` is the interpreter that the wheel is for; `extra` are wheels and requirements that the
    checks need beside it; the environment is made anew in `scratch`. What pip says goes to `log`.
    Raise VerifyError with every check that failed.
    """
    start = time.monotonic()
    interpreter = static.interpreter(python)
    found = static.problems(wheel, plan, interpreter)
    if found:
        raise _failed(wheel, found)
    venv = trial.environment(python, scratch / "venv", log)
    trial.install(venv, [wheel, *extra], log)
    checks = trial.checks(venv, f"{package.checks}_checks.py", expectations(plan, package), log)
    found = [f"{name}: {check.detail}" for name, check in checks.items() if not check.ok]
    if found:
        raise _failed(wheel, found)
    return Report(checks, trial.installed(venv), interpreter.release, time.monotonic() - start)


def expectations(plan: Plan, package: Package) -> dict[str, object]:
    """Return what the check scripts compare with, as they read it."""
    return {
        "import": package.import_name,
        "version": plan.version,
        "commit": plan.commit,
        "cuda": plan.build.cuda,
        "switches": dict(plan.set),
    }


def _failed(wheel: Path, found: Sequence[str]) -> VerifyError:
    listed = "".join(f"\n  {each}" for each in found)
    number = f"{len(found)} checks" if len(found) > 1 else "one check"
    return VerifyError(
        f"{wheel.name}: {number} failed, so the wheel is not delivered: correct the build:{listed}"
    )
