"""`invoke slim --variants`: make of one wheel a variant for each kind of GPU, at once.

The wheel is read and extracted once. Each variant has the code of all GPUs that would get it, not
of its own capability alone: a client gives the variant for 8.6 to GPUs of 8.9 if there is no other.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from millpress import file_names

from torchmill.config.facts import Facts
from torchmill.config.wheel_variants import NULL_VARIANT, WheelVariant
from torchmill.core.console import format_table
from torchmill.core.errors import DeliveryError
from torchmill.core.units import format_bytes
from torchmill.plan import variant_choice
from torchmill.plan.variant_choice import GpuGroup
from torchmill.wheel import finished_wheel, slim_wheel, written_wheel
from torchmill.wheel.dist_files import read_manifest
from torchmill.wheel.finished_wheel import FinishedWheel
from torchmill.wheel.slim import RequestedGpu, SlimRequest
from torchmill.wheel.slim_wheel import LibraryFile
from torchmill.wheel.written_wheel import NewWheel, StagedLibraries

_PTX = " PTX"  # at the end of the names of code


@dataclass(frozen=True, slots=True)
class MadeVariant:
    """A variant wheel that was written, or was there already."""

    path: Path
    variant: WheelVariant
    kept_for: tuple[str, ...]  # the GPUs that get it: "8.6", "8.9"; (): any machine
    size: int  # bytes
    is_new: bool


def make_gpu_variants(
    facts: Facts, wheel: Path, capabilities: Sequence[str], destination: Path
) -> list[MadeVariant]:
    """Write a variant of a wheel for each capability, and the null variant, and return them.

    If all are there already, made of the same wheel for the same GPUs, nothing is written. Raises
    DeliveryError for a wheel that is a variant itself, is signed, or has no code for a GPU.
    """
    refuse_variant(wheel)
    arch = _arch_of(file_names.platform_part(wheel.name))
    groups = variant_choice.group_gpus(facts, capabilities, arch)
    earlier = _find_earlier(facts, finished_wheel.read_wheel(wheel), groups, destination)
    if earlier:
        return earlier
    original = slim_wheel.read_sound_wheel(wheel)
    made = []
    with slim_wheel.staging_folder(wheel, destination) as folder:
        files = slim_wheel.stage_libraries(wheel, folder, facts.unslimmed_libraries)
        for group in groups:
            made.append(_make_gpu_variant(facts, original, folder, files, group, destination))
        staged = StagedLibraries(original, folder, [])
        made.append(_write_variant(staged, _whole(original, NULL_VARIANT), destination))
    return made


def make_whole_variant(
    wheel: Path, variant: WheelVariant, destination: Path, version: str = ""
) -> MadeVariant:
    """Write a variant that has all of a wheel, under another `version` if one is given.

    If it is there already, made of the same wheel, nothing is written. Raises DeliveryError for a
    wheel that is a variant itself.
    """
    refuse_variant(wheel)
    original = finished_wheel.read_wheel(wheel)
    new = _whole(original, variant, version)
    path = destination / new.file_name(wheel)
    if _is_made_of(path, original, new):
        return _describe(path, new, is_new=False)
    original = slim_wheel.read_sound_wheel(wheel)
    with slim_wheel.staging_folder(wheel, destination) as folder:
        slim_wheel.stage_metadata(wheel, folder)
        return _write_variant(StagedLibraries(original, folder, []), new, destination)


def _whole(original: FinishedWheel, variant: WheelVariant, version: str = "") -> NewWheel:
    """Return the variant that has all of a wheel."""
    return NewWheel(version or str(original.version), variant=variant)


def _arch_of(platform_tags: str) -> str:
    """Return "aarch64" if a wheel's platform tags are for such a machine, else "x86_64"."""
    return "aarch64" if platform_tags.endswith(("aarch64", "arm64")) else "x86_64"


def format_variants(made: Sequence[MadeVariant], plain_size: int) -> str:
    """Return a table of the variants of a wheel: who gets each, and what it costs."""
    rows = []
    for item in made:
        share = f"{item.size / plain_size:.2f}"
        rows.append((item.variant.label, takers(item), format_bytes(item.size), share))
    return format_table(["variant", "for", "size", "of the whole"], rows)


def takers(made: MadeVariant) -> str:
    """Return who gets a variant, for people: "GPUs of 8.6, 8.9"."""
    if made.kept_for:
        return f"GPUs of {', '.join(made.kept_for)}"
    return ", ".join(map(str, made.variant.properties)) or "all other machines"


def refuse_variant(wheel: Path) -> None:
    """Raise DeliveryError for a wheel that is a variant: what it is for would no longer be true."""
    _, label = file_names.split_label(wheel.name)
    if label:
        raise DeliveryError(
            f"{wheel}: is the variant {label}: name the plain wheel that it was made from",
            code="variant-of-variant",
        )


def _make_gpu_variant(  # noqa: PLR0917
    facts: Facts,
    original: FinishedWheel,
    folder: Path,
    files: Sequence[LibraryFile],
    group: GpuGroup,
    destination: Path,
) -> MadeVariant:
    """Write the variant for a group of GPUs from the extracted libraries in `folder`."""
    request = SlimRequest(facts, tuple(RequestedGpu(gpu) for gpu in group.takers))
    libraries = slim_wheel.plan_libraries(files, request)
    own = tuple(gpu for gpu in request.gpus if gpu.capability.name == group.capability)
    slim_wheel.require_served(original.path.name, libraries, SlimRequest(facts, own))
    code = {name for library in libraries for name in library.plan.kept_code}
    needs_ptx = any(name.endswith(_PTX) for name in code)
    new = _for_group(facts, original, group, needs_ptx=needs_ptx)
    return _write_variant(StagedLibraries(original, folder, libraries), new, destination)


def _for_group(
    facts: Facts, original: FinishedWheel, group: GpuGroup, *, needs_ptx: bool
) -> NewWheel:
    """Return the variant of a wheel for a group of GPUs."""
    cuda = written_wheel.original_cuda(original)
    variant = variant_choice.gpu_variant(facts, group.capability, cuda, needs_ptx=needs_ptx)
    kept_for = tuple(gpu.name for gpu in group.takers)
    return NewWheel(str(original.version), kept_for, variant=variant)


def _find_earlier(
    facts: Facts, original: FinishedWheel, groups: Sequence[GpuGroup], destination: Path
) -> list[MadeVariant]:
    """Return the variants of a wheel that an earlier run wrote; [] unless all are there."""
    found = []
    for group in groups:
        # Whether the driver has to compile some code is in its libraries, which are not read.
        for needs_ptx in (False, True):
            new = _for_group(facts, original, group, needs_ptx=needs_ptx)
            path = destination / new.file_name(original.path)
            if _is_made_of(path, original, new):
                found.append(_describe(path, new, is_new=False))
    null = _whole(original, NULL_VARIANT)
    path = destination / null.file_name(original.path)
    if len(found) < len(groups) or not _is_made_of(path, original, null):
        return []
    return [*found, _describe(path, null, is_new=False)]


def _write_variant(staged: StagedLibraries, new: NewWheel, destination: Path) -> MadeVariant:
    """Write a variant."""
    path = written_wheel.write_wheel(staged, new, destination)
    return _describe(path, new, is_new=True)


def _describe(path: Path, new: NewWheel, *, is_new: bool) -> MadeVariant:
    """Return a variant that is there."""
    variant = new.variant or NULL_VARIANT
    return MadeVariant(path, variant, new.kept_for, path.stat().st_size, is_new)


def _is_made_of(path: Path, original: FinishedWheel, new: NewWheel) -> bool:
    """Tell whether a variant was written from a wheel before, in the same way."""
    if not path.is_file():
        return False
    manifest = read_manifest(path)
    same_key = manifest.get("key") == written_wheel.wheel_key(original, new)
    return same_key and manifest.get("size") == path.stat().st_size
