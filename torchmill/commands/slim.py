"""`invoke slim`: leave out of wheels, or of an environment, the GPU code that its GPUs do not run."""

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from millpress import wheel_file
from millpress.errors import InputError, WheelError

from torchmill.commands.verify import named_wheels
from torchmill.config.arch_list import parse_arch_list
from torchmill.config.facts import Facts
from torchmill.config.gpu_names import find_gpus, gpus_of_host
from torchmill.config.release_lookup import newest_release
from torchmill.core.atomic_writes import fresh_path
from torchmill.core.console import format_table
from torchmill.core.errors import BuildError, ConfigError, DeliveryError
from torchmill.core.paths import Layout
from torchmill.core.system_errors import report_unwritable
from torchmill.core.units import format_bytes
from torchmill.deliver.agreement import DOCUMENT_ERRORS
from torchmill.host.measurement import measure_host
from torchmill.wheel import slim_wheel
from torchmill.wheel.slim import Request
from torchmill.wheel.slim_wheel import SlimLibrary, StagedLibraries
from torchmill.wheel.verify.device_code import code_order

_NOTHING_TO_REMOVE = (
    "nothing can be removed, because these GPUs need all that is in it; nothing was written"
)


def slim_wheels(  # noqa: PLR0917 - every one is an option
    facts: Facts,
    layout: Layout,
    wheel: list[str] | None = None,
    arch_list: str = "",
    gpu: list[str] | None = None,
    local: bool = False,
    environment: str = "",
    out: str = "",
    dry_run: bool = False,
) -> str:
    """Drop GPU code that your GPUs do not run from wheels."""
    request = _request(facts, layout, arch_list, gpu or (), local)
    if bool(wheel) == bool(environment) or (environment and out):
        why = "name wheels, or --environment .venv, which takes no --out: it is changed in place"
        raise ConfigError(why, code="nothing-to-slim")
    if environment:
        return "\n".join(_slim_environment(Path(environment), request, dry_run))
    return "\n".join(
        _slim_each(
            named_wheels(layout, wheel or ()), request, Path(out) if out else layout.dist, dry_run
        )
    )


def _request(
    facts: Facts, layout: Layout, listed: str, names: Sequence[str], local: bool
) -> Request:
    """Return the GPUs that were named in any way. Raises ConfigError."""
    targets, problems = (
        parse_arch_list(facts, listed, newest_release(facts).torch_version) if listed else ([], [])
    )
    if problems:
        raise ConfigError(f"--arch-list {listed}: {'; '.join(problems)}", code="invalid-arch-list")
    found = [one for name in names for one in find_gpus(facts, name)]
    if local:
        machine = measure_host(layout.root)
        found += gpus_of_host(facts, machine.gpus.devices, machine.gpus_unknown)
    wanted = {each.capability.name: False for each in found}
    for target in targets:
        wanted[target.capability] = target.ptx or wanted.get(target.capability, False)
    gpus = [(facts.capability(name), wanted[name]) for name in sorted(wanted, key=code_order)]
    if unknown := [name for name in wanted if facts.capability(name) is None]:
        raise ConfigError(
            f"gpus.toml knows no GPU of {', '.join(unknown)}", code="unknown-capability"
        )
    if not gpus:
        raise ConfigError(
            "for which GPUs? --arch-list 8.6, --gpu 'RTX 3090', or --local", code="no-capability"
        )
    return Request(facts, tuple((gpu, ptx) for gpu, ptx in gpus if gpu is not None))


def slim_for_image(
    facts: Facts, layout: Layout, arch_list: str, folder: Path, wheels: Sequence[Path]
) -> list[Path]:
    """Return wheels slimmed into a folder; one without code for GPUs stays, unless it is the only one."""
    list(
        _slim_each(
            wheels, _request(facts, layout, arch_list, (), local=False), folder, dry_run=False
        )
    )
    slim = {wheel_file.parse_file_name(path)[0]: path for path in wheel_file.list_wheels(folder)}
    return [slim.get(wheel_file.parse_file_name(path)[0], path) for path in wheels]


def _slim_each(
    wheels: Sequence[Path], request: Request, destination: Path, dry_run: bool
) -> Iterator[str]:
    """Slim wheels one after the other, and yield what came of each."""
    bases: dict[str, str] = {}
    for wheel in sorted(
        wheels, key=lambda each: not each.name.startswith("torch-")
    ):  # others may pin it
        found = slim_wheel.require_sound(wheel)
        if slim_wheel.slim_version(found.version, request, "") == str(found.version):
            yield f"{wheel.name}: is slim for these GPUs already; it stays as it is"
            continue
        with (
            report_unwritable(destination),
            fresh_path(destination / f"{wheel.stem}.slim") as folder,
        ):
            folder.mkdir()
            files = slim_wheel.stage_libraries(wheel, folder, request.facts.kept_libraries)
            libraries = slim_wheel.plan_libraries(files, request)
            if libraries or len(wheels) == 1:
                slim_wheel.require_served(wheel.name, libraries, request)
            elif slim_wheel.new_base(found, bases) is None:
                yield f"{wheel.name}: has no code for GPUs that may be left out; it stays as it is"
                continue
            if not slim_wheel.removes_code(libraries) and slim_wheel.new_base(found, bases) is None:
                yield f"{wheel.name}: {_NOTHING_TO_REMOVE}"
                continue
            yield from _describe(libraries)
            if dry_run:
                yield f"{wheel.name}: nothing was written"
                continue
            staged = StagedLibraries(found, folder, libraries)
            try:
                slimmed = slim_wheel.write_slim_wheel(staged, request, destination, bases)
            except DOCUMENT_ERRORS as error:
                why = f"{wheel}: its manifest cannot be understood ({error}): remove it, or fetch it again"
                raise DeliveryError(why, code="foreign-document") from None
        bases[f"{found.name}=={found.version}"] = f"{found.name}=={slimmed.name.split('-')[1]}"
        yield f"{slimmed}: {format_bytes(found.size)} before, {format_bytes(slimmed.stat().st_size)} now"


def _slim_environment(environment: Path, request: Request, dry_run: bool) -> Iterator[str]:
    """Slim what an environment has installed, and yield what came of each package."""
    pins, words = [], "would be left" if dry_run else "are left"
    for package in slim_wheel.list_packages(environment, request.facts.kept_libraries):
        try:
            if not (libraries := slim_wheel.plan_libraries(package.files, request)):
                continue
            slim_wheel.require_served(package.name, libraries, request)
            slim_wheel.require_unchanged(package, libraries)
            if not slim_wheel.removes_code(libraries):
                yield f"{package.name} {package.version}: {_NOTHING_TO_REMOVE}"
                continue
        except (BuildError, DeliveryError, InputError, WheelError) as error:
            yield f"{error}; it stays as it is"
            continue
        yield from _describe(libraries)
        if not dry_run:
            slim_wheel.slim_package(package, libraries)
        sizes = (
            sum(each.plan.size for each in libraries),
            sum(each.new_size for each in libraries),
        )
        yield f"{package.name} {package.version}: of {format_bytes(sizes[0])} {format_bytes(sizes[1])} {words}"
        pins.append(f"{package.name}=={package.version}")
    if not pins:
        yield f"{environment}: nothing in it can be slimmed"
    elif not dry_run:
        pip = environment / "bin" / "pip"
        command = f"{shlex.quote(str(pip))} install --force-reinstall"
        if not pip.exists():  # as uv makes environments
            command = f"uv pip install --python {shlex.quote(str(environment))} --reinstall"
        yield f"to undo this: {command} --no-deps {' '.join(pins)}"


def _describe(libraries: Sequence[SlimLibrary]) -> Iterator[str]:
    """Yield a table of what each library has now and then."""
    rows: list[tuple[str, ...]] = []
    for each in libraries:
        plan, way = each.plan, "cut out" if each.plan.cuts.ranges else "holes"
        rows.append((each.name, "all", format_bytes(plan.size), format_bytes(each.new_size), way))
        sizes = (
            (name, plan.code[name], plan.kept[name]) for name in sorted(plan.code, key=code_order)
        )
        rows += [("", name, format_bytes(now), format_bytes(then), "") for name, now, then in sizes]
    yield format_table(["library", "code for", "now", "then", "room"], rows)
