"""`invoke slim`: leave out GPU code that some GPUs do not run, of wheels or of an environment."""

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from millpress import wheel_file
from millpress.errors import InputError, WheelError

from torchmill.commands import slim_variants
from torchmill.commands.verify import named_wheels
from torchmill.config.arch_list import NUMBER, ArchTarget, parse_arch_list
from torchmill.config.facts import Facts
from torchmill.config.gpu_names import NamedGpu, find_gpus, gpus_of_host
from torchmill.config.release_lookup import newest_release
from torchmill.core.console import format_table
from torchmill.core.errors import BuildError, ConfigError, DeliveryError
from torchmill.core.paths import Layout
from torchmill.core.units import format_bytes
from torchmill.deliver.agreement import DOCUMENT_ERRORS
from torchmill.host.measurement import measure_host
from torchmill.wheel import slim_wheel
from torchmill.wheel.slim import RequestedGpu, SlimRequest
from torchmill.wheel.verify.device_code import code_order
from torchmill.wheel.written_wheel import SlimLibrary, StagedLibraries

_NOTHING_TO_REMOVE = (
    "nothing can be removed, because these GPUs need all that is in it; nothing was written"
)


def slim_wheels(
    facts: Facts,
    layout: Layout,
    *,
    wheel: list[str] | None = None,
    arch_list: str = "",
    gpu: list[str] | None = None,
    local: bool = False,
    environment: str = "",
    out: str = "",
    variants: bool = False,
    dry_run: bool = False,
) -> str:
    """Leave out GPU code that the named GPUs do not run, and return the outcome of each wheel.

    New wheels are written to `out`, by default dist/; an environment is changed in place. With
    `variants`, a wheel becomes one for each of the GPUs; words in `wheel` may then be capabilities,
    and without any other word the wheels are those in dist/. Raises ConfigError for options that do
    not go together or name no GPU, DeliveryError or WheelError for a wheel that cannot be made slim.
    """
    if variants:
        numbers = [word for word in wheel or () if NUMBER.fullmatch(word)]
        arch_list = ";".join(filter(None, [arch_list, *numbers]))
        wheel = [word for word in wheel or () if word not in numbers]
    request = _request(facts, layout, arch_list, gpu or (), local=local)
    folder = Path(out) if out else layout.dist
    if variants:
        if environment or dry_run:
            raise ConfigError(
                "--variants writes wheels: leave out --environment and --dry-run",
                code="contradictory-options",
            )
        return "\n".join(_make_variants(plain_wheels(layout, wheel or ()), request, folder))
    if bool(wheel) == bool(environment) or (environment and out):
        raise ConfigError(
            "name wheels, or --environment .venv, which takes no --out: it is changed in place",
            code="nothing-to-slim",
        )
    if environment:
        lines = _slim_environment(Path(environment), request, dry_run=dry_run)
    else:
        wheels = named_wheels(layout, wheel or ())
        lines = _slim_each(wheels, request, folder, dry_run=dry_run)
    return "\n".join(lines)


def _request(
    facts: Facts, layout: Layout, arch_list: str, gpu_names: Sequence[str], *, local: bool
) -> SlimRequest:
    """Return the GPUs that --arch-list, --gpu and --local name, and for which PTX is kept.

    Raises ConfigError if there are none, and for a capability that the facts do not have.
    """
    targets: list[ArchTarget] = []
    if arch_list:
        targets, problems = parse_arch_list(facts, arch_list, newest_release(facts).torch_version)
        if problems:
            raise ConfigError(
                f"--arch-list {arch_list}: {'; '.join(problems)}", code="invalid-arch-list"
            )
    gpus: list[NamedGpu] = []
    for name in gpu_names:
        gpus += find_gpus(facts, name)
    if local:
        machine = measure_host(layout.root)
        gpus += gpus_of_host(facts, machine.gpus.devices, machine.unknown_gpus_reason)
    needs_ptx = {gpu.capability.name: False for gpu in gpus}
    for target in targets:
        needs_ptx[target.capability] = target.ptx or needs_ptx.get(target.capability, False)
    requested = []
    unknown = []
    for name in sorted(needs_ptx, key=code_order):
        capability = facts.capability(name)
        if capability is None:
            unknown.append(name)
        else:
            requested.append(RequestedGpu(capability, with_ptx=needs_ptx[name]))
    if unknown:
        raise ConfigError(
            f"gpus.toml knows no GPU of {', '.join(unknown)}", code="unknown-capability"
        )
    if not requested:
        raise ConfigError(
            "for which GPUs? --arch-list 8.6, --gpu 'RTX 3090', or --local", code="no-capability"
        )
    return SlimRequest(facts, tuple(requested))


def plain_wheels(layout: Layout, names: Sequence[str]) -> list[Path]:
    """Return the plain wheels that paths name, as `named_wheels` does.

    Raises DeliveryError for a variant that is named itself, not by its folder.
    """
    for name in names:
        if Path(name).is_file():
            slim_variants.refuse_variant(Path(name))
    wheels = []
    for wheel in named_wheels(layout, names):
        if not wheel_file.parse_file_name(wheel).variant:
            wheels.append(wheel)
    return wheels


def named_capabilities(
    facts: Facts, layout: Layout, arch_list: str, gpu_names: Sequence[str]
) -> list[str]:
    """Return the compute capabilities of GPUs that --arch-list and --gpu name, oldest first.

    There may be none. Raises ConfigError as for a slim wheel.
    """
    if not arch_list and not gpu_names:
        return []
    request = _request(facts, layout, arch_list, gpu_names, local=False)
    return _variant_capabilities(request)


def _variant_capabilities(request: SlimRequest) -> list[str]:
    """Return the capabilities of which variants are made. Raises ConfigError for PTX."""
    with_ptx = [gpu.capability.name for gpu in request.gpus if gpu.with_ptx]
    if with_ptx:
        raise ConfigError(
            f"{with_ptx[0]}+PTX: later GPUs get the null variant, which has all code: leave out "
            "+PTX",
            code="ptx-in-variant",
        )
    return [gpu.capability.name for gpu in request.gpus]


def _make_variants(
    wheels: Sequence[Path], request: SlimRequest, destination: Path
) -> Iterator[str]:
    """Make variants of each wheel with code for GPUs, and yield tables of them.

    Of several wheels, those without such code stay as they are; the only one is refused. Raises
    DeliveryError for a wheel of which no variants can be made.
    """
    capabilities = _variant_capabilities(request)
    for wheel in wheels:
        made = slim_variants.make_gpu_variants(request.facts, wheel, capabilities, destination)
        if not made and len(wheels) == 1:
            slim_wheel.require_served(wheel.name, [], request)  # raises: there is no code
        if not made:
            yield f"{wheel.name}: has no code for GPUs that may be left out, and no variants"
            continue
        yield f"{wheel.name}: {format_bytes(wheel.stat().st_size)}"
        yield slim_variants.format_variants(made, wheel.stat().st_size)
    # An index needs the plain wheels, too.
    folders = dict.fromkeys([*(wheel.parent for wheel in wheels), destination])
    words = " ".join(f"--dist {shlex.quote(str(folder))}" for folder in folders)
    yield f"to index them: invoke index --variants {words}"


def slim_for_image(
    facts: Facts, layout: Layout, arch_list: str, folder: Path, wheels: Sequence[Path]
) -> list[Path]:
    """Return wheels, in the same order, slimmed into an empty folder for some GPUs.

    A wheel without code for GPUs stays as it is. Raises DeliveryError if it is the only one.
    """
    request = _request(facts, layout, arch_list, (), local=False)
    # The wheels are written while the lines about them are yielded; the lines are not needed.
    list(_slim_each(wheels, request, folder, dry_run=False))
    slim = {}
    for path in wheel_file.list_wheels(folder):
        slim[wheel_file.parse_file_name(path).project] = path
    return [slim.get(wheel_file.parse_file_name(path).project, path) for path in wheels]


def _slim_each(
    wheels: Sequence[Path], request: SlimRequest, destination: Path, *, dry_run: bool
) -> Iterator[str]:
    """Slim wheels one after the other, and yield lines on the outcome of each."""
    # torch goes first: its version changes, and the other wheels may pin it.
    ordered = sorted(wheels, key=lambda wheel: not wheel.name.startswith("torch-"))
    new_pins: dict[str, str] = {}
    alone = len(wheels) == 1
    for wheel in ordered:
        yield from _slim_one(wheel, request, destination, new_pins, alone=alone, dry_run=dry_run)


def _slim_one(
    wheel: Path,
    request: SlimRequest,
    destination: Path,
    new_pins: dict[str, str],
    *,
    alone: bool,
    dry_run: bool,
) -> Iterator[str]:
    """Slim a wheel, and yield lines on the outcome.

    A wheel without code for GPUs stays as it is, but is refused if it is `alone`, the only wheel
    that the user named. `new_pins` maps the pins of earlier wheels, "torch==2.4.1+cu121", to the
    pins of their slim versions; those of this wheel are added. A wheel that pins one of them is
    written even if no code is removed.
    """
    slim_variants.refuse_variant(wheel)
    distribution = slim_wheel.read_sound_wheel(wheel)
    version = str(distribution.version)
    if slim_wheel.slim_version(distribution.version, request, "") == version:
        yield f"{wheel.name}: is slim for these GPUs already; it stays as it is"
        return
    with slim_wheel.staging_folder(wheel, destination) as folder:
        files = slim_wheel.stage_libraries(wheel, folder, request.facts.unslimmed_libraries)
        libraries = slim_wheel.plan_libraries(files, request)
        pins_new_base = slim_wheel.slim_requirement(distribution, new_pins) is not None
        if libraries or alone:
            slim_wheel.require_served(wheel.name, libraries, request)
        elif not pins_new_base:
            yield f"{wheel.name}: has no code for GPUs that may be left out; it stays as it is"
            return
        if not slim_wheel.removes_code(libraries) and not pins_new_base:
            yield f"{wheel.name}: {_NOTHING_TO_REMOVE}"
            return
        yield _format_libraries(libraries)
        if dry_run:
            yield f"{wheel.name}: nothing was written"
            return
        staged = StagedLibraries(distribution, folder, libraries)
        try:
            slimmed = slim_wheel.write_slim_wheel(staged, request, destination, new_pins)
        except DOCUMENT_ERRORS as error:
            raise DeliveryError(
                f"{wheel}: its manifest cannot be understood ({error}): remove it, or fetch it "
                "again",
                code="foreign-document",
            ) from None
    new_version = slimmed.name.split("-")[1]
    new_pins[f"{distribution.name}=={version}"] = f"{distribution.name}=={new_version}"
    new_size = slimmed.stat().st_size
    yield f"{slimmed}: {format_bytes(distribution.size)} before, {format_bytes(new_size)} now"


def _slim_environment(environment: Path, request: SlimRequest, *, dry_run: bool) -> Iterator[str]:
    """Slim the packages of an environment in place, and yield lines on the outcome of each."""
    pins = []
    for package in slim_wheel.list_packages(environment, request.facts.unslimmed_libraries):
        try:
            libraries = slim_wheel.plan_libraries(package.files, request)
            if not libraries:
                continue
            slim_wheel.require_served(package.name, libraries, request)
            slim_wheel.require_unchanged(package, libraries)
            if not slim_wheel.removes_code(libraries):
                yield f"{package.name} {package.version}: {_NOTHING_TO_REMOVE}"
                continue
        except (BuildError, DeliveryError, InputError, WheelError) as error:
            yield f"{error}; it stays as it is"
            continue
        yield _format_libraries(libraries)
        if not dry_run:
            slim_wheel.slim_package(package, libraries)
        before = format_bytes(sum(library.plan.size for library in libraries))
        after = format_bytes(sum(library.new_size for library in libraries))
        ending = "would be left" if dry_run else "are left"
        yield f"{package.name} {package.version}: of {before} {after} {ending}"
        pins.append(f"{package.name}=={package.version}")
    if not pins:
        yield f"{environment}: nothing in it can be slimmed"
    elif not dry_run:
        yield f"to undo this: {_install_command(environment)} --no-deps {' '.join(pins)}"


def _install_command(environment: Path) -> str:
    """Return the command that installs packages again into an environment."""
    pip = environment / "bin" / "pip"
    if pip.exists():
        return f"{shlex.quote(str(pip))} install --force-reinstall"
    # Environments that uv makes have no pip.
    return f"uv pip install --python {shlex.quote(str(environment))} --reinstall"


def _format_libraries(libraries: Sequence[SlimLibrary]) -> str:
    """Return a table of the sizes of libraries before and after, in all and for each GPU.

    The last column is how the room is won: code is cut out of the file, or becomes holes in it,
    which take no room on the disk.
    """
    rows = []
    for library in libraries:
        plan = library.plan
        room = "cut out" if plan.cuts.ranges else "holes"
        sizes = (format_bytes(plan.size), format_bytes(library.new_size))
        rows.append((library.name, "all", *sizes, room))
        for code in sorted(plan.code, key=code_order):
            sizes = (format_bytes(plan.code[code]), format_bytes(plan.kept_code[code]))
            rows.append(("", code, *sizes, ""))
    return format_table(["library", "code for", "now", "then", "room"], rows)
