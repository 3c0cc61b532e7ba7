"""`nox -s gpu`: install wheels in a fresh environment and try them on this machine's GPU."""

import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from millpress.wheel_file import parse_file_name, tag_python

from torchmill.config.facts import Facts
from torchmill.config.gpu_names import gpu_capability
from torchmill.config.served_gpus import unserved_capabilities
from torchmill.core.console import format_table
from torchmill.core.errors import ConfigError, GpuError, VerifyError
from torchmill.core.paths import Layout, nox_environments_folder
from torchmill.host import environments, interpreters, native
from torchmill.host.measurement import measure_host
from torchmill.plan.base_package import find_installed
from torchmill.plan.doctor import absent_gpu
from torchmill.wheel import dist_files
from torchmill.wheel.verify import clean_environment
from torchmill.wheel.verify.clean_environment import CheckResult

_SCRIPT, _EXTENSION_SCRIPT = "gpu_checks.py", "gpu_extension_checks.py"


@dataclass(frozen=True, slots=True)
class GpuWheel:
    """A wheel, and its manifest."""

    path: Path
    manifest: Mapping[str, Any]

    @property
    def base(self) -> str:
        """Return which torch it is, or is built against: "torch==1.13.1+cu117"."""
        return str(
            self.manifest.get("torch")
            or f"{self.manifest.get('package')}=={self.manifest.get('version')}"
        )

    @property
    def pythons(self) -> frozenset[str]:
        """Return the Pythons that it is for, "3.10" or "3.13t"; none if it takes any."""
        return frozenset(filter(None, map(tag_python, parse_file_name(self.path)[3])))


def try_wheels(root: Path, facts: Facts, named: Sequence[str]) -> str:
    """Try wheels on the GPU, and return what came of it as a table.

    `named` are their paths, and environments with a torch to try them with; without a wheel, the newest in dist/ that
    hold code for GPUs are tried. Raises GpuError where no GPU answers, VerifyError where it answers wrongly.
    """
    layout = Layout.of_checkout(root)
    lenders = [find_installed("torch", Path(name)).parent for name in named if Path(name).is_dir()]
    wheels = [_read(Path(name)) for name in named if not Path(name).is_dir()] or newest_cuda_wheels(
        layout.dist, native.native_arch()
    )
    machine = measure_host(layout.root)
    if reason := absent_gpu.absence_reason(machine):
        raise GpuError(reason, code="no-gpu")
    here = [found.name for gpu in machine.gpus.devices if (found := gpu_capability(facts, gpu))]
    useless = [
        f"\n  {wheel.path.name}: {why}"
        for wheel in wheels
        if (why := why_useless(facts, wheel, here))
    ]
    if useless:
        raise VerifyError(
            f"no GPU here runs what was named:{''.join(useless)}", code="no-code-for-gpu"
        )
    checks = check_on_gpu(facts, wheels, lenders, layout)
    names = ", ".join(wheel.path.name for wheel in wheels)
    if not checks["device"].ok and checks["import"].ok:
        toolkit = next(
            (wheel.manifest["toolkit"] for wheel in wheels if wheel.manifest.get("toolkit")), None
        )
        why = absent_gpu.explain_no_gpu(facts, machine, toolkit, checks["device"].detail)
        raise GpuError(f"{names}: {why}", code="gpu-not-usable")
    wrong = [f"\n  {name}: {check.detail}" for name, check in checks.items() if not check.ok]
    if wrong:
        told = f"{names}: {len(wrong)} of {len(checks)} checks failed on the GPU:{''.join(wrong)}"
        raise VerifyError(told, code="gpu-check-failed")
    return format_table(
        ["check", "on the GPU"], ([name, check.detail or "ok"] for name, check in checks.items())
    )


def why_useless(facts: Facts, wheel: GpuWheel, capabilities: Sequence[str]) -> str | None:
    """Return why a wheel runs on no GPU of these compute capabilities; None where it runs, or nobody knows."""
    code = {
        name.replace(" ", "+")
        for one in wheel.manifest.get("device_code", {}).values()
        for name in one
    }
    served = not code or len(
        unserved_capabilities(facts, ";".join(code), ";".join(capabilities))
    ) < len(capabilities)
    if served or not capabilities:
        return None
    asked = ";".join(dict.fromkeys(capabilities))
    return f"it has code for {', '.join(sorted(code))}, not for this GPU: build it with --arch-list '{asked}'"


def newest_cuda_wheels(dist: Path, arch: str) -> list[GpuWheel]:
    """Return the newest wheel in `dist` for this arch that holds code for GPUs, and those that go with it.

    Raises ConfigError where there is none.
    """
    files = sorted(dist.glob(f"*_{arch}.whl"), key=lambda path: path.stat().st_mtime)
    able = [wheel for wheel in map(_read, files) if wheel.manifest.get("device_code")]
    if not able:
        raise ConfigError(
            f"{dist} holds no wheel with code for GPUs: build one (`invoke matrix` lists them), or name "
            "others: nox -s gpu -- WHEEL …",
            code="no-gpu-wheel",
        )
    newest = able[-1]
    same = (wheel for wheel in able if wheel.base == newest.base)
    fitting = (
        one for one in same if one.pythons & newest.pythons or not (one.pythons and newest.pythons)
    )
    return list({wheel.manifest["package"]: wheel for wheel in fitting}.values())


def common_python(wheels: Iterable[GpuWheel]) -> str:
    """Return the Python that wheels have in common, of their build where any would do; raise ConfigError for none."""
    wanted = [wheel.pythons for wheel in wheels if wheel.pythons]
    built = (str(wheel.manifest.get("identifier", "")).split("-") for wheel in wheels)
    wanted = wanted or [frozenset({words[1]}) for words in built if len(words) > 1]
    common = frozenset.intersection(*wanted) if wanted else frozenset()
    if len(common) != 1:
        listed = ", ".join(sorted(frozenset().union(*wanted))) or "any"
        raise ConfigError(
            f"the wheels are for Python {listed}: name wheels for one of them",
            code="several-pythons",
        )
    return next(iter(common))


def check_on_gpu(
    facts: Facts, wheels: Sequence[GpuWheel], lenders: Sequence[Path], layout: Layout
) -> dict[str, CheckResult]:
    """Install wheels in a new environment beside nox's, and return what came of each check there.

    The environment has what is installed in the folders `lenders` as well; what pip says goes to gpu.log.
    """
    python = interpreters.resolve_interpreter(common_python(wheels))
    scratch = nox_environments_folder()
    for place in (layout.logs, scratch):
        place.mkdir(parents=True, exist_ok=True)
    pins = (str(pin) for wheel in wheels for pin in wheel.manifest.get("requirements", ()))
    numpy = sorted({pin for pin in pins if pin.startswith("numpy==") and not lenders})
    with (
        (layout.logs / "gpu.log").open("w", encoding="utf-8") as log,
        tempfile.TemporaryDirectory(prefix="gpu-", dir=scratch) as folder,
    ):
        venv = clean_environment.create_environment(python, Path(folder), log, layout.environments)
        for lender in lenders:
            environments.import_packages_of(Path(folder), lender)
        base = [wheel for wheel in wheels if not _smoke(facts, wheel)]
        first: list[Path | str] = [*(wheel.path for wheel in base), *numpy[:1]]
        if first:
            clean_environment.install_packages(venv, first, log)
        refused: dict[str, CheckResult] = {}
        for wheel in (one for one in wheels if one not in base):
            try:  # what one of them requires may be nowhere
                clean_environment.install_packages(venv, [wheel.path], log)
            except VerifyError as error:
                refused[wheel.path.name] = CheckResult(ok=False, detail=str(error))
        tried = [wheel for wheel in wheels if wheel.path.name not in refused]
        checks = clean_environment.run_checks(venv, _SCRIPT, expectations(tried), log)
        checks |= {
            name: _try_lines(venv, lines, log) for name, lines in extensions(facts, tried).items()
        }
        return checks | refused


def _try_lines(venv: Path, lines: Sequence[str], log: TextIO) -> CheckResult:
    """Run the lines of an extension in a process of their own: a kernel may take it down."""
    try:
        return clean_environment.run_checks(venv, _EXTENSION_SCRIPT, {"smoke": lines}, log)["lines"]
    except VerifyError as error:
        return CheckResult(ok=False, detail=str(error))


def extensions(facts: Facts, wheels: Iterable[GpuWheel]) -> dict[str, list[str]]:
    """Return the extensions among wheels, with the lines that try each."""
    smoke = {parse_file_name(one.path)[0]: _smoke(facts, one) for one in wheels}
    return {name: lines for name, lines in sorted(smoke.items()) if lines}


def expectations(wheels: Sequence[GpuWheel]) -> dict[str, object]:
    """Return what the checks compare with: of the torch that is among the wheels."""
    base = next(
        (one.manifest for one in wheels if one.manifest and not one.manifest.get("torch")), {}
    )
    return {
        "cuda": base.get("toolkit"),
        "switches": base.get("switches", {}),
        "libraries": base.get("libraries", {}),
        "vision": any(wheel.path.name.startswith("torchvision-") for wheel in wheels),
    }


def _smoke(facts: Facts, wheel: GpuWheel) -> list[str]:
    """Return the lines that try an extension; none for torch and torchvision. Others' wheels have no manifest."""
    package = facts.packages.get(parse_file_name(wheel.path)[0])
    return list(package.gpu_smoke) if package else []


def _read(path: Path) -> GpuWheel:
    if not path.is_file():
        raise ConfigError(
            f"{path}: no such wheel: name one, or nothing for the newest in dist/",
            code="no-such-wheel",
        )
    return GpuWheel(path, dist_files.read_manifest(path))
