"""Wheels tried on the GPU of this machine, in an environment of their own: what `nox -s gpu` does."""

import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from torchmill import artifact, host, interpreters
from torchmill.console import table
from torchmill.doctor import unanswered
from torchmill.errors import ConfigError, GpuError, VerifyError
from torchmill.layout import Layout, environments
from torchmill.model import Facts
from torchmill.verify import trial
from torchmill.verify.trial import Check

_SCRIPT = "gpu_checks.py"
_VISION = "torchvision"


@dataclass(frozen=True, slots=True)
class Wheel:
    """A wheel, and what its manifest tells of it."""

    path: Path
    told: Mapping[str, Any]

    @property
    def base(self) -> str:
        """Return which torch it is, or is built against: "torch==1.13.1+cu117"."""
        return str(self.told.get("torch") or f"{self.told.get('package')}=={self.told.get('version')}")

    @property
    def pythons(self) -> frozenset[str]:
        """Return the Pythons that it is for, "3.10" or "3.13t"; none where it takes any.

        Raises ConfigError where its name is not one of a wheel.
        """
        try:
            tags = parse_wheel_filename(self.path.name)[3]
        except InvalidWheelFilename as error:
            raise ConfigError(f"{self.path}: not a wheel ({error}): name wheels, or nothing") from None
        own = (tag for tag in tags if tag.interpreter.startswith("cp") and tag.abi.startswith("cp"))
        return frozenset(
            f"{tag.interpreter[2]}.{tag.interpreter[3:]}{'t' * tag.abi.endswith('t')}" for tag in own
        )


def run(root: Path, facts: Facts, named: Sequence[str]) -> str:
    """Try wheels on the GPU, and return what came of it as a table.

    `named` are their paths; without any, the newest in dist/ that hold code for GPUs are tried. Raises
    GpuError where no GPU answers, VerifyError where it answers wrongly.
    """
    layout = Layout.of(root)
    wheels = [_read(Path(name)) for name in named] or chosen(layout.dist, host.native_arch())
    version = python_of(wheels)
    machine = host.measure(layout.root)
    if reason := unanswered.out_of_sight(machine):
        raise GpuError(reason)
    for folder in (layout.logs, environments()):
        folder.mkdir(parents=True, exist_ok=True)
    with (layout.logs / "gpu.log").open("w", encoding="utf-8") as log:
        checks = tried(wheels, interpreters.resolve(version), environments(), log)
    names = ", ".join(wheel.path.name for wheel in wheels)
    if not checks["device"].ok and checks["import"].ok:
        toolkit = next((wheel.told["toolkit"] for wheel in wheels if wheel.told.get("toolkit")), None)
        raise GpuError(f"{names}: {unanswered.explained(facts, machine, toolkit, checks['device'].detail)}")
    wrong = [f"\n  {name}: {check.detail}" for name, check in checks.items() if not check.ok]
    if wrong:
        raise VerifyError(f"{names}: {len(wrong)} of {len(checks)} checks failed on the GPU:{''.join(wrong)}")
    return table(["check", "on the GPU"], ([name, check.detail or "ok"] for name, check in checks.items()))


def chosen(dist: Path, arch: str) -> list[Wheel]:
    """Return the newest wheel in `dist` for this arch that holds code for GPUs, and those that go with it.

    Raises ConfigError where there is none.
    """
    files = sorted(dist.glob(f"*_{arch}.whl"), key=lambda path: path.stat().st_mtime)
    every = [_read(path) for path in files]
    able = [wheel for wheel in every if wheel.told.get("device_code")]
    if not able:
        raise ConfigError(
            f"{dist} holds no wheel with code for GPUs: build one (`invoke matrix` lists them), or name "
            "others: nox -s gpu -- WHEEL …"
        )
    newest = able[-1]
    fitting = [wheel for wheel in able if wheel.base == newest.base and wheel.pythons & newest.pythons]
    return list({wheel.told["package"]: wheel for wheel in fitting}.values())


def python_of(wheels: Iterable[Wheel]) -> str:
    """Return the Python that all of some wheels are for; raise ConfigError where they have none in common."""
    wanted = [wheel.pythons for wheel in wheels if wheel.pythons]
    common = frozenset.intersection(*wanted) if wanted else frozenset()
    if len(common) != 1:
        listed = ", ".join(sorted(frozenset().union(*wanted))) or "any"
        raise ConfigError(f"the wheels are for Python {listed}: name such as are for one and the same")
    return next(iter(common))


def tried(wheels: Sequence[Wheel], python: Path, scratch: Path, log: TextIO) -> dict[str, Check]:
    """Install wheels in a new environment below `scratch`, and return what came of each check there.

    What pip says goes to `log`.
    """
    pins = (str(pin) for wheel in wheels for pin in wheel.told.get("requirements", ()))
    numpy = sorted({pin for pin in pins if pin.startswith("numpy==")})
    with tempfile.TemporaryDirectory(prefix="gpu-", dir=scratch) as folder:
        venv = trial.environment(python, Path(folder), log)
        trial.install(venv, [*(wheel.path for wheel in wheels), *numpy[:1]], log)
        return trial.checks(venv, _SCRIPT, expectations(wheels), log)


def expectations(wheels: Sequence[Wheel]) -> dict[str, object]:
    """Return what the checks compare with, by the manifest of the torch that is among the wheels."""
    base = next((wheel.told for wheel in wheels if wheel.told and not wheel.told.get("torch")), {})
    return {
        "cuda": base.get("toolkit"),
        "switches": base.get("switches", {}),
        "libraries": base.get("libraries", {}),
        "vision": any(wheel.path.name.startswith(f"{_VISION}-") for wheel in wheels),
    }


def _read(path: Path) -> Wheel:
    if not path.is_file():
        raise ConfigError(f"{path}: there is no such wheel: name wheels, or nothing for the newest in dist/")
    return Wheel(path, artifact.record(path))
