"""`invoke slim --variants`: make of one wheel a variant for each kind of GPU, at once.

The wheel is read and extracted once. Each variant has the code of all GPUs that would get it, not
of its own capability alone: a client gives the variant for 8.6 to GPUs of 8.9 if there is no other.

Of a release that has wheels for several CUDA toolkits, each wheel is also a variant as it is, for
those of its GPUs that no variant of it is made for.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from millpress import file_names

from torchmill.config import wheel_variants
from torchmill.config.facts import Facts
from torchmill.config.gpu import Capability
from torchmill.config.versions import cuda_label
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
from torchmill.wheel.written_wheel import NewWheel, SlimLibrary, StagedLibraries

_PTX = " PTX"  # at the end of the names of code


@dataclass(frozen=True, slots=True)
class MadeVariant:
    """A variant wheel that was written, or was there already."""

    path: Path
    variant: WheelVariant
    kept_for: tuple[str, ...]  # the GPUs that get it: "8.6", "8.9"; (): any machine
    size: int  # bytes
    is_new: bool


@dataclass(frozen=True, slots=True)
class CudaWheel:
    """A wheel for one of the CUDA toolkits of a release, which is to become variants of it."""

    path: Path
    version: str  # of the release: "2.9.0" of the wheel 2.9.0+cu126
    cuda: str  # "12.6"
    driver_cuda: str  # of the oldest driver that gets it: "12.0"

    def bound(self, *, needs_ptx: bool) -> str:
        """Return the CUDA of the oldest driver for a variant; `needs_ptx`: it compiles PTX."""
        return self.cuda if needs_ptx else self.driver_cuda


def make_gpu_variants(
    facts: Facts, wheel: Path, capabilities: Sequence[str], destination: Path
) -> list[MadeVariant]:
    """Write a variant of a wheel for each capability, and the null variant, and return them.

    If all are there already, made of the same wheel for the same GPUs, nothing is written. A wheel
    without code that may be left out has none: []. Raises DeliveryError for a wheel that is a
    variant itself, is signed, or has no code for one of the GPUs.
    """
    refuse_variant(wheel)
    groups = _group_gpus(facts, wheel, capabilities)
    original = finished_wheel.read_wheel(wheel)
    subject = _subject(facts, original)
    earlier = _find_earlier(subject, original, groups, destination)
    if earlier:
        return earlier
    made: list[MadeVariant] = []
    with slim_wheel.staging_folder(wheel, destination) as folder:
        files = slim_wheel.stage_libraries(wheel, folder, facts.unslimmed_libraries)
        if not files:
            return made
        original = slim_wheel.read_sound_wheel(wheel)
        for group, libraries in _plan_groups(facts, wheel.name, files, groups):
            new = _for_group(subject, group, needs_ptx=_needs_ptx(libraries))
            staged = StagedLibraries(original, folder, libraries)
            made.append(_write_variant(staged, new, destination))
        staged = StagedLibraries(original, folder, [])
        made.append(_write_variant(staged, _whole(original, NULL_VARIANT), destination))
    return made


def make_cuda_variants(
    facts: Facts, subject: CudaWheel, capabilities: Sequence[str]
) -> list[MadeVariant]:
    """Write the variants of a wheel for one of the CUDA toolkits of a release, and return them.

    They are one for each of the capabilities that it has code for, and one that has all of it, for
    the rest of its GPUs. They are written beside the wheel; if all are there already, nothing is
    written. Raises DeliveryError for a wheel that is signed.
    """
    wheel = subject.path
    destination = wheel.parent
    groups = _group_gpus(facts, wheel, capabilities)
    earlier = _find_earlier_of_cuda(facts, subject, groups)
    if earlier:
        return earlier
    original = slim_wheel.read_sound_wheel(wheel)
    made = []
    with slim_wheel.staging_folder(wheel, destination) as folder:
        files = slim_wheel.stage_libraries(wheel, folder, facts.unslimmed_libraries)
        libraries = _plan_for(facts, files, _gpus_of(facts, wheel))
        gpus = slim_wheel.native_capabilities(libraries)
        groups = [group for group in groups if group.capability in gpus]
        for group, libraries in _plan_groups(facts, wheel.name, files, groups):
            new = _for_group(subject, group, needs_ptx=_needs_ptx(libraries), original_gpus=gpus)
            staged = StagedLibraries(original, folder, libraries)
            made.append(_write_variant(staged, new, destination))
        rest = variant_choice.gpus_without_group(facts, gpus, groups)
        if rest:
            libraries = _plan_for(facts, files, rest)
            new = _for_rest(subject, rest, gpus, needs_ptx=_needs_ptx(libraries))
            made.append(_write_variant(StagedLibraries(original, folder, []), new, destination))
    return made


def _group_gpus(facts: Facts, wheel: Path, capabilities: Sequence[str]) -> list[GpuGroup]:
    """Return which GPUs get the variant of each capability of a wheel, oldest first."""
    arch = _arch_of(file_names.platform_part(wheel.name))
    return variant_choice.group_gpus(facts, capabilities, arch)


def _gpus_of(facts: Facts, wheel: Path) -> list[Capability]:
    """Return the GPUs of the machines that a wheel is for, oldest first."""
    arch = _arch_of(file_names.platform_part(wheel.name))
    gpus = []
    for gpu in facts.gpus.capabilities:
        if variant_choice.is_of_arch(gpu, arch):
            gpus.append(gpu)
    return gpus


def _subject(facts: Facts, original: FinishedWheel) -> CudaWheel:
    """Return a wheel as the only one of its release."""
    cuda = written_wheel.original_cuda(original)
    driver_cuda = variant_choice.oldest_cuda(facts, cuda) if cuda else ""
    return CudaWheel(original.path, str(original.version), cuda, driver_cuda)


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
    properties = wheel_variants.describe_properties(made.variant.properties)
    return properties or "all other machines"


def refuse_variant(wheel: Path) -> None:
    """Raise DeliveryError for a wheel that is a variant: what it is for would no longer be true."""
    _, label = file_names.split_label(wheel.name)
    if label:
        raise DeliveryError(
            f"{wheel}: is the variant {label}: name the plain wheel that it was made from",
            code="variant-of-variant",
        )


def _plan_groups(
    facts: Facts, title: str, files: Sequence[LibraryFile], groups: Sequence[GpuGroup]
) -> list[tuple[GpuGroup, list[SlimLibrary]]]:
    """Return the libraries of the variant for each group of GPUs, with the parts that stay.

    Raises DeliveryError if the wheel, whose name is `title`, has no code for a group.
    """
    requests = []
    for group in groups:
        requests.append(SlimRequest(facts, tuple(RequestedGpu(gpu) for gpu in group.takers)))
    planned = list(zip(groups, slim_wheel.plan_for_each(files, requests), strict=True))
    for group, libraries in planned:
        own = tuple(RequestedGpu(gpu) for gpu in group.takers if gpu.name == group.capability)
        slim_wheel.require_served(title, libraries, SlimRequest(facts, own))
    return planned


def _plan_for(
    facts: Facts, files: Sequence[LibraryFile], gpus: Sequence[Capability]
) -> list[SlimLibrary]:
    """Return the libraries with code for GPUs, each with the parts that stay for some GPUs."""
    requested = tuple(RequestedGpu(gpu) for gpu in gpus)
    return slim_wheel.plan_libraries(files, SlimRequest(facts, requested))


def _needs_ptx(libraries: Sequence[SlimLibrary]) -> bool:
    """Tell whether a driver has to compile some of the code that stays in libraries."""
    return any(name.endswith(_PTX) for library in libraries for name in library.plan.kept_code)


def _for_group(
    subject: CudaWheel, group: GpuGroup, *, needs_ptx: bool, original_gpus: Sequence[str] = ()
) -> NewWheel:
    """Return the variant of a wheel for a group of GPUs."""
    driver_cuda = subject.bound(needs_ptx=needs_ptx)
    variant = variant_choice.gpu_variant(group.capability, subject.cuda, driver_cuda)
    kept_for = tuple(gpu.name for gpu in group.takers)
    return NewWheel(subject.version, kept_for, variant=variant, original_gpus=tuple(original_gpus))


def _for_rest(
    subject: CudaWheel, rest: Sequence[Capability], gpus: Sequence[str], *, needs_ptx: bool
) -> NewWheel:
    """Return the variant that has all of a wheel, for the `rest` of its `gpus`."""
    driver_cuda = subject.bound(needs_ptx=needs_ptx)
    names = [gpu.name for gpu in rest]
    variant = variant_choice.cuda_variant(names, subject.cuda, driver_cuda)
    return NewWheel(subject.version, variant=variant, original_gpus=tuple(gpus))


def _find_earlier(
    subject: CudaWheel, original: FinishedWheel, groups: Sequence[GpuGroup], destination: Path
) -> list[MadeVariant]:
    """Return the variants of a wheel that an earlier run wrote; [] unless all are there."""
    found = _find_groups(subject, original, groups, destination)
    null = _whole(original, NULL_VARIANT)
    path = destination / null.file_name(original.path)
    if len(found) < len(groups) or not _is_made_of(path, original, null):
        return []
    return [*found, _describe(path, null, is_new=False)]


def _find_earlier_of_cuda(
    facts: Facts, subject: CudaWheel, groups: Sequence[GpuGroup]
) -> list[MadeVariant]:
    """Return the variants of a release's wheel that an earlier run wrote; [] unless all are there.

    The GPUs that the wheel has code for are read from the manifest of any of them.
    """
    original = finished_wheel.read_wheel(subject.path)
    destination = subject.path.parent
    gpus = _recorded_gpus(subject, original, groups)
    groups = [group for group in groups if group.capability in gpus]
    found = _find_groups(subject, original, groups, destination)
    if not gpus or len(found) < len(groups):
        return []
    rest = variant_choice.gpus_without_group(facts, gpus, groups)
    if not rest:
        return found
    for needs_ptx in (False, True):
        new = _for_rest(subject, rest, gpus, needs_ptx=needs_ptx)
        path = destination / new.file_name(subject.path)
        if _is_made_of(path, original, new):
            return [*found, _describe(path, new, is_new=False)]
    return []


def _recorded_gpus(
    subject: CudaWheel, original: FinishedWheel, groups: Sequence[GpuGroup]
) -> Sequence[str]:
    """Return the GPUs that a wheel has code for, as a variant of it says; () without any."""
    variants = [_for_group(subject, group, needs_ptx=False) for group in groups]
    variants.append(NewWheel(subject.version, variant=WheelVariant(cuda_label(subject.cuda))))
    for new in variants:
        manifest = read_manifest(subject.path.parent / new.file_name(subject.path))
        described = manifest.get("wheel_variant", {})
        if manifest.get("original", {}).get("sha256") == original.sha256:
            return tuple(described.get("original_gpus", ()))
    return ()


def _find_groups(
    subject: CudaWheel, original: FinishedWheel, groups: Sequence[GpuGroup], destination: Path
) -> list[MadeVariant]:
    """Return the variants for groups of GPUs that an earlier run wrote."""
    found = []
    for group in groups:
        # Whether the driver has to compile some code is in its libraries, which are not read.
        for needs_ptx in (False, True):
            new = _for_group(subject, group, needs_ptx=needs_ptx)
            path = destination / new.file_name(original.path)
            if _is_made_of(path, original, new):
                found.append(_describe(path, new, is_new=False))
                break
    return found


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
