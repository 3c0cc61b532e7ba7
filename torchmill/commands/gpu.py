"""`nox -s gpu`: install wheels in a fresh environment and try them on this machine's GPU.

The checks are programs in checks/ that the environment's Python runs. An *extension* is a package
whose facts have lines that try it (`gpu_smoke`); torch and torchvision have checks of their own.
"""

import re
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
from torchmill.host.host import Host
from torchmill.host.installed_packages import find_installed
from torchmill.host.measurement import measure_host
from torchmill.plan.base_package import installed_base
from torchmill.plan.build_options import Options
from torchmill.plan.doctor import absent_gpu
from torchmill.wheel import dist_files
from torchmill.wheel.verify import clean_environment
from torchmill.wheel.verify.clean_environment import CheckResult

# Programs in checks/.
_SCRIPT = "gpu_checks.py"
_EXTENSION_SCRIPT = "gpu_extension_checks.py"
# The Python in the name of a session, whose package may have a hyphen.
_IDENTIFIER_PYTHON = re.compile(r"-(?P<python>\d+\.\d+t?)-")


@dataclass(frozen=True, slots=True)
class GpuWheel:
    """A wheel, and its manifest."""

    path: Path
    manifest: Mapping[str, Any]

    @property
    def base(self) -> str:
        """Return the torch that the wheel is, or is built against: "torch==1.13.1+cu117"."""
        package = self.manifest.get("package")
        return str(self.manifest.get("torch") or f"{package}=={self.manifest.get('version')}")

    @property
    def pythons(self) -> frozenset[str]:
        """Return the Pythons that the wheel is for, "3.10" or "3.13t"; none if it takes any."""
        tags = parse_file_name(self.path).tags
        return frozenset(python for python in map(tag_python, tags) if python)


def try_wheels(root: Path, facts: Facts, paths: Sequence[str]) -> str:
    """Try wheels on the GPU, and return the results as a table.

    `paths` are those of wheels, and of environments whose torch and packages the wheels are tried
    with. Without a wheel, the newest in dist/ that have code for GPUs are tried. Raises GpuError if
    no GPU can be used, VerifyError if a check fails.
    """
    layout = Layout.of_checkout(root)
    torch_folders = []
    wheels = []
    for path in map(Path, paths):
        if path.is_dir():
            torch_folders.append(_folder_of_torch(path))
        else:
            wheels.append(_read_wheel(path))
    wheels = wheels or newest_cuda_wheels(layout.dist, native.native_arch())
    machine = measure_host(layout.root)
    absence = absent_gpu.absence_reason(machine)
    if absence:
        raise GpuError(absence, code="no-gpu")
    _require_code(facts, wheels, machine)
    checks = check_on_gpu(facts, wheels, torch_folders, layout)
    listed = ", ".join(wheel.path.name for wheel in wheels)
    if checks["import"].ok and not checks["device"].ok:
        # torch was imported, and sees no GPU.
        toolkits = [wheel.manifest.get("toolkit") for wheel in wheels]
        toolkit = next(filter(None, toolkits), None)
        detail = checks["device"].detail
        reason = absent_gpu.explain_no_gpu(facts, machine, toolkit, detail)
        raise GpuError(f"{listed}: {reason}", code="gpu-not-usable")
    failures = [f"\n  {name}: {check.detail}" for name, check in checks.items() if not check.ok]
    if failures:
        raise VerifyError(
            f"{listed}: {len(failures)} of {len(checks)} checks failed on the GPU:"
            f"{''.join(failures)}",
            code="gpu-check-failed",
        )
    rows = [(name, check.detail or "ok") for name, check in checks.items()]
    return format_table(["check", "on the GPU"], rows)


def _folder_of_torch(environment: Path) -> Path:
    """Return the folder of packages of an environment that has torch once, else raise ConfigError."""
    options = Options(torch=str(environment), torch_installed=find_installed("torch", environment))
    return installed_base("torch", options).dist_info.parent


def _require_code(facts: Facts, wheels: Sequence[GpuWheel], machine: Host) -> None:
    """Raise VerifyError if a wheel runs on no GPU of this machine."""
    capabilities = []
    for gpu in machine.gpus.devices:
        capability = gpu_capability(facts, gpu)
        if capability:
            capabilities.append(capability.name)
    lines = []
    for wheel in wheels:
        reason = why_unusable(facts, wheel, capabilities)
        if reason:
            lines.append(f"\n  {wheel.path.name}: {reason}")
    if lines:
        raise VerifyError(
            f"no GPU here runs what was named:{''.join(lines)}", code="no-code-for-gpu"
        )


def why_unusable(facts: Facts, wheel: GpuWheel, capabilities: Sequence[str]) -> str | None:
    """Return why the wheel runs on none of the GPUs with these compute capabilities.

    Returns None if it runs on one of them, if there are none, or if its manifest lists no code for
    GPUs. A machine with two GPUs of a kind has their capability twice.
    """
    code: set[str] = set()
    for names in wheel.manifest.get("device_code", {}).values():
        # "8.6 PTX" in the manifest is "8.6+PTX" in an --arch-list.
        code.update(name.replace(" ", "+") for name in names)
    if not code or not capabilities:
        return None
    distinct = list(dict.fromkeys(capabilities))
    arch_list = ";".join(distinct)
    if len(unserved_capabilities(facts, ";".join(code), arch_list)) < len(distinct):
        return None
    return (
        f"it has code for {', '.join(sorted(code))}, not for this GPU: build it with "
        f"--arch-list '{arch_list}'"
    )


def newest_cuda_wheels(dist: Path, arch: str) -> list[GpuWheel]:
    """Return the newest wheel in `dist` that has code for GPUs, and the wheels that go with it.

    These have the same torch and Python; of each package there is one, the newest. Raises
    ConfigError if no wheel for this architecture has code for GPUs.
    """
    files = sorted(dist.glob(f"*_{arch}.whl"), key=lambda path: path.stat().st_mtime)
    wheels = [_read_wheel(path) for path in files]
    cuda_wheels = [wheel for wheel in wheels if wheel.manifest.get("device_code")]
    if not cuda_wheels:
        raise ConfigError(
            f"{dist} holds no wheel with code for GPUs: build one (`invoke matrix` lists them), or "
            "name others: nox -s gpu -- WHEEL …",
            code="no-gpu-wheel",
        )
    newest = cuda_wheels[-1]
    # The Pythons that all chosen wheels take. A wheel without Pythons takes any; so the set is empty
    # until the first wheel with some is chosen.
    pythons: frozenset[str] = frozenset()
    by_package: dict[str, GpuWheel] = {}
    for wheel in reversed(cuda_wheels):
        package = parse_file_name(wheel.path).project
        if wheel.base != newest.base or package in by_package:
            continue
        if wheel.pythons:
            common = pythons & wheel.pythons if pythons else wheel.pythons
            if not common:
                continue
            pythons = common
        by_package[package] = wheel
    return list(reversed(by_package.values()))


def common_python(wheels: Iterable[GpuWheel]) -> str:
    """Return the Python that all wheels take.

    If each of them takes any Python, return the one with which they were built. Raises ConfigError
    unless there is exactly one.
    """
    listed = list(wheels)
    pythons = [wheel.pythons for wheel in listed if wheel.pythons]
    if not pythons:
        for wheel in listed:
            # "flash-attn-3.10-cu118": the manifest has no other field with the Python.
            match = _IDENTIFIER_PYTHON.search(str(wheel.manifest.get("identifier", "")))
            if match is not None:
                pythons.append(frozenset({match["python"]}))
    if not pythons:
        raise ConfigError(
            "nothing says for which Python the wheels are: name a wheel for one Python, too",
            code="several-pythons",
        )
    common = frozenset.intersection(*pythons)
    if len(common) != 1:
        names = ", ".join(sorted(frozenset().union(*pythons)))
        raise ConfigError(
            f"the wheels are for Python {names}: name wheels for one of them",
            code="several-pythons",
        )
    return next(iter(common))


def check_on_gpu(
    facts: Facts, wheels: Sequence[GpuWheel], torch_folders: Sequence[Path], layout: Layout
) -> dict[str, CheckResult]:
    """Install wheels in a new environment, and return the results of the checks by name.

    The environment is removed at the end; while it exists, it can also import the packages in
    `torch_folders`. The output of pip and of the checks goes to gpu.log in the folder of logs.
    """
    python = interpreters.resolve_interpreter(common_python(wheels))
    scratch = nox_environments_folder()
    for folder in (layout.logs, scratch):
        folder.mkdir(parents=True, exist_ok=True)
    with (
        (layout.logs / "gpu.log").open("w", encoding="utf-8") as log,
        tempfile.TemporaryDirectory(prefix="gpu-", dir=scratch) as environment,
    ):
        venv = clean_environment.create_environment(
            python, Path(environment), log, layout.environments
        )
        for folder in torch_folders:
            environments.add_package_folder(Path(environment), folder)
        # An environment that is lent brings its own NumPy.
        failed_installs = _install_wheels(facts, wheels, venv, log, with_numpy=not torch_folders)
        tried = [wheel for wheel in wheels if wheel.path.name not in failed_installs]
        checks = clean_environment.run_checks(venv, _SCRIPT, expected_values(tried), log)
        for name, lines in smoke_lines_by_package(facts, tried).items():
            checks[name] = _try_lines(venv, lines, log)
        return {**checks, **failed_installs}


def _install_wheels(
    facts: Facts, wheels: Sequence[GpuWheel], venv: Path, log: TextIO, *, with_numpy: bool
) -> dict[str, CheckResult]:
    """Install wheels, and return a failed check for each extension that cannot be installed.

    Extensions are installed one by one: if a requirement of one of them is on no index, the others
    are tried all the same. Raises VerifyError if a wheel that is no extension cannot be installed.
    """
    core_wheels = [wheel for wheel in wheels if not _smoke_lines(facts, wheel)]
    first: list[Path | str] = [wheel.path for wheel in core_wheels]
    if with_numpy:
        first += _numpy_pins(wheels)[:1]  # one version, if the wheels were built with several
    if first:
        clean_environment.install_packages(venv, first, log)
    failed_installs = {}
    for wheel in wheels:
        if wheel in core_wheels:
            continue
        try:
            clean_environment.install_packages(venv, [wheel.path], log)
        except VerifyError as error:
            failed_installs[wheel.path.name] = CheckResult(ok=False, detail=str(error))
    return failed_installs


def _numpy_pins(wheels: Sequence[GpuWheel]) -> list[str]:
    """Return the NumPys that wheels were built with, "numpy==1.24.4"."""
    pins: set[str] = set()
    for wheel in wheels:
        pins.update(str(pin) for pin in wheel.manifest.get("requirements", ()))
    return sorted(pin for pin in pins if pin.startswith("numpy=="))


def _try_lines(venv: Path, lines: Sequence[str], log: TextIO) -> CheckResult:
    """Run the lines of an extension in a process of its own, which a faulty kernel may crash."""
    try:
        checks = clean_environment.run_checks(venv, _EXTENSION_SCRIPT, {"smoke": lines}, log)
    except VerifyError as error:
        return CheckResult(ok=False, detail=str(error))
    return checks["lines"]


def smoke_lines_by_package(facts: Facts, wheels: Iterable[GpuWheel]) -> dict[str, list[str]]:
    """Return the lines that try the extensions among wheels, by package."""
    lines = {parse_file_name(wheel.path).project: _smoke_lines(facts, wheel) for wheel in wheels}
    return {name: lines[name] for name in sorted(lines) if lines[name]}


def expected_values(wheels: Sequence[GpuWheel]) -> dict[str, object]:
    """Return the values with which checks compare the torch among wheels, from its manifest.

    Without a torch among them, "cuda" is None and the tables are empty: nothing is compared.
    """
    manifest: Mapping[str, Any] = {}
    for wheel in wheels:
        # Manifests of all other packages name the torch that they are built against.
        if wheel.manifest and not wheel.manifest.get("torch"):
            manifest = wheel.manifest
            break
    return {
        "cuda": manifest.get("toolkit"),
        "switches": manifest.get("switches", {}),
        "libraries": manifest.get("libraries", {}),
        "vision": any(wheel.path.name.startswith("torchvision-") for wheel in wheels),
    }


def _smoke_lines(facts: Facts, wheel: GpuWheel) -> list[str]:
    """Return the lines that try an extension; none for other packages."""
    # The package is known by the name of the file: wheels that others built have no manifest.
    package = facts.packages.get(parse_file_name(wheel.path).project)
    return list(package.checks.gpu_smoke) if package else []


def _read_wheel(path: Path) -> GpuWheel:
    """Return a wheel with its manifest. Raises ConfigError if there is no such file."""
    if not path.is_file():
        raise ConfigError(
            f"{path}: no such wheel: name one, or nothing for the newest in dist/",
            code="no-such-wheel",
        )
    return GpuWheel(path, dist_files.read_manifest(path))
