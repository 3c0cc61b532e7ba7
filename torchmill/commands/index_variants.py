"""`invoke index --variants`: make of the wheels of an index variants of one version each.

Made are a variant for each kind of GPU that was named, by slimming; one for each CUDA toolkit of a
release that has wheels for several; one for each processor that a wheel was built for (--cpu); and
the null variant of each wheel that has others. They are written beside their originals, as wheels
like any other.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from millpress import file_names, wheel_file
from millpress.file_names import NULL_LABEL
from packaging.version import Version

from torchmill.commands import slim_variants
from torchmill.commands.slim_variants import CudaWheel, MadeVariant
from torchmill.config import wheel_variants
from torchmill.config.facts import Facts
from torchmill.config.versions import labelled_cuda
from torchmill.config.wheel_variants import NULL_VARIANT
from torchmill.core.console import format_table
from torchmill.core.errors import DeliveryError
from torchmill.core.units import format_bytes, name_few
from torchmill.deliver.index.entries import IndexEntry
from torchmill.plan import variant_choice
from torchmill.plan.wheel_name import processor_words
from torchmill.wheel import dist_files, finished_wheel, written_wheel
from torchmill.wheel.written_wheel import NewWheel


@dataclass(slots=True)
class VariantWork:
    """What was made for an index, and what is left out of it."""

    made: list[MadeVariant] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)  # file name -> the reason, a clause
    notes: list[str] = field(default_factory=list)

    @property
    def written(self) -> set[Path]:
        """Return the wheels that this run wrote: they were compared with their originals then."""
        return {item.path for item in self.made if item.is_new}


@dataclass(frozen=True, slots=True)
class VariantCost:
    """What the wheels of one variant of a version cost."""

    release: str  # "torch 2.15.0"
    label: str  # "" for the plain wheels
    properties: tuple[str, ...]
    wheels: int  # for several Pythons and platforms
    size: int  # bytes, of all of them
    share: float  # of the plain wheels beside them; 0 if there are none


def leave_out_variants(dists: Iterable[Path]) -> VariantWork:
    """Return the work for an index without --variants: every variant wheel is left out of it.

    Nothing is made, and nothing is removed from the folders.
    """
    work = VariantWork()
    for dist in dists:
        for path in wheel_file.list_wheels(dist):
            if _label(path):
                work.left_out[path.name] = "a variant, and --variants is not given"
    return work


def make_variants(facts: Facts, dists: Iterable[Path], capabilities: Sequence[str]) -> VariantWork:
    """Write the variants of the wheels in some folders that are not there yet.

    `capabilities` are those of the GPUs that were named; without any, only variants for processors
    and null variants are made. Raises DeliveryError for a wheel that cannot be made into variants.
    """
    work = VariantWork()
    for dist in dists:
        plain = [path for path in wheel_file.list_wheels(dist) if not _label(path)]
        releases = _cuda_releases(work, facts, plain)
        for subjects in releases:
            _add_cuda_variants(work, facts, subjects, capabilities)
        of_releases = {subject.path for subjects in releases for subject in subjects}
        if capabilities:
            for wheel in plain:
                if wheel not in of_releases and wheel.name not in work.left_out:
                    _add_gpu_variants(work, facts, wheel, capabilities)
        _add_processor_variants(work, plain)
        _add_null_variants(work, dist)
    return work


def _label(wheel: Path) -> str:
    """Return the label of a variant wheel; "" for a plain wheel."""
    return wheel_file.parse_file_name(wheel).variant


def _cuda_releases(work: VariantWork, facts: Facts, plain: Sequence[Path]) -> list[list[CudaWheel]]:
    """Return the releases that have wheels for several CUDA toolkits, each with these wheels.

    One of the wheels has no label of its toolkit, and is what pip takes; the others, such as
    2.9.0+cu126, are left out of the index, because pip would prefer them on any machine.
    """
    names = {path.name: path for path in plain}
    toolkits: dict[Path, dict[str, Path]] = defaultdict(dict)  # by the wheel for pip: by CUDA
    for wheel in plain:
        version = wheel_file.parse_file_name(wheel).version
        label = next(filter(labelled_cuda, (version.local or "").split(".")), "")
        general = names.get(NewWheel(version_without(version, [label])).file_name(wheel))
        if not label or general is None:
            continue
        if not toolkits[general]:
            toolkits[general][_cuda_of(general)] = general
        cuda = _cuda_of(wheel) or labelled_cuda(label)
        first = toolkits[general].setdefault(cuda, wheel)
        work.left_out[wheel.name] = (
            f"its variants are of {wheel_file.parse_file_name(general).version}"
        )
        if first != wheel:
            work.notes.append(f"{wheel.name}: has the CUDA of {first.name}, and no variants")
    releases = []
    for general, wheels in toolkits.items():
        wheels.pop("", None)  # the wheel for pip may be one without CUDA
        release = str(wheel_file.parse_file_name(general).version)
        drivers = variant_choice.oldest_drivers(facts, wheels)
        subjects = [CudaWheel(path, release, cuda, drivers[cuda]) for cuda, path in wheels.items()]
        releases.append(subjects)
    return releases


def _cuda_of(wheel: Path) -> str:
    """Return the CUDA version that a wheel was made with; "" of a wheel without CUDA."""
    return written_wheel.original_cuda(finished_wheel.read_wheel(wheel))


def _add_cuda_variants(
    work: VariantWork, facts: Facts, subjects: Sequence[CudaWheel], capabilities: Sequence[str]
) -> None:
    """Make the variants of a release's wheels for several CUDA toolkits.

    Raises DeliveryError if none of them has code for one of the capabilities.
    """
    served: set[str] = set()
    for subject in subjects:
        made = slim_variants.make_cuda_variants(facts, subject, capabilities)
        work.made += made
        for item in made:
            served.update(item.kept_for)
    missing = [capability for capability in capabilities if capability not in served]
    if missing:
        wheels = ", ".join(subject.path.name for subject in subjects)
        raise DeliveryError(
            f"{wheels}: none has machine code for GPUs of {', '.join(missing)}",
            code="capability-not-in-wheel",
        )


def _add_gpu_variants(
    work: VariantWork, facts: Facts, wheel: Path, capabilities: Sequence[str]
) -> None:
    """Make the variants for GPUs of a wheel; one without code for GPUs has none."""
    made = slim_variants.make_gpu_variants(facts, wheel, capabilities, wheel.parent)
    work.made += made
    if not made:
        work.notes.append(f"{wheel.name}: has no code for GPUs, and no variants for them")


def _add_processor_variants(work: VariantWork, plain: Sequence[Path]) -> None:
    """Make variants of the wheels that were built for a processor.

    Each becomes a variant of the wheel that was built for any processor, under its version.
    """
    names = {path.name for path in plain}
    for wheel in plain:
        processor = dist_files.read_manifest(wheel).get("processor")
        name = str(processor.get("name")) if isinstance(processor, dict) else ""
        if not name:
            continue
        version = common_version(wheel_file.parse_file_name(wheel).version, name)
        general = NewWheel(version).file_name(wheel)
        variant = wheel_variants.processor_variant(name)
        if variant is None:
            known = ", ".join(wheel_variants.named_processors())
            problem = f"no provider can name {name}, so that it is no variant (they name {known})"
        elif general not in names:
            problem = f"is no variant without {general}, the wheel for any processor"
        else:
            made = slim_variants.make_whole_variant(wheel, variant, wheel.parent, version)
            work.made.append(made)
            work.left_out[wheel.name] = f"it is the variant {variant.label} of {version}"
            continue
        work.notes.append(f"{wheel.name}: {problem}")


def _add_null_variants(work: VariantWork, dist: Path) -> None:
    """Make the null variant of each plain wheel that has other variants."""
    labels: dict[str, set[str]] = defaultdict(set)  # by the plain wheel's name
    for path in wheel_file.list_wheels(dist):
        plain_name, label = file_names.split_label(path.name)
        labels[plain_name].add(label)
    for plain_name, known in labels.items():
        plain = dist / plain_name
        is_complete = known == {""} or NULL_LABEL in known
        # Without the plain wheel, the index is refused later, with all that it lacks.
        if not is_complete and plain.is_file():
            work.made.append(slim_variants.make_whole_variant(plain, NULL_VARIANT, dist))


def common_version(version: Version, processor: str) -> str:
    """Return the version without the label of a processor: "1.13.1+cpu" of "1.13.1+cpu.x86.64.v3"."""
    return version_without(version, processor_words(processor))


def version_without(version: Version, words: Sequence[str]) -> str:
    """Return a version without some words in a row of its local label, or as it is without them."""
    labels = (version.local or "").split(".")
    for start in range(len(labels) - len(words) + 1):
        if labels[start : start + len(words)] == words:
            rest = labels[:start] + labels[start + len(words) :]
            return f"{version.public}+{'.'.join(rest)}" if rest else version.public
    return str(version)


def variant_costs(entries: Sequence[IndexEntry]) -> list[VariantCost]:
    """Return what the wheels of each version that has variants cost, the plain ones first."""
    groups: dict[tuple[str, Version], dict[str, list[IndexEntry]]] = defaultdict(dict)
    for entry in entries:
        groups[entry.name, entry.version].setdefault(entry.label, []).append(entry)
    costs = []
    for (name, version), by_label in groups.items():
        if set(by_label) == {""}:
            continue
        plain_sizes = {entry.tags: entry.size for entry in by_label.get("", [])}
        for label, wheels in sorted(by_label.items()):
            size = sum(entry.size for entry in wheels)
            plain_size = sum(plain_sizes.get(entry.tags, 0) for entry in wheels)
            variant = wheels[0].variant
            cost = VariantCost(
                release=f"{name} {version}",
                label=label,
                properties=tuple(map(str, variant.properties)) if variant else (),
                wheels=len(wheels),
                size=size,
                share=round(size / plain_size, 3) if plain_size else 0,
            )
            costs.append(cost)
    return costs


def report_lines(work: VariantWork, costs: Sequence[VariantCost]) -> Iterator[str]:
    """Yield lines on variants: who gets which, what they cost, and what was left out."""
    reasons: dict[str, list[str]] = defaultdict(list)
    for file, reason in work.left_out.items():
        reasons[reason].append(file)
    for reason, files in reasons.items():
        yield f"  left out ({reason}): {name_few(files)}"
    if not costs:
        return
    rows = []
    for cost in costs:
        properties = map(wheel_variants.parse_property, cost.properties)
        machines = wheel_variants.describe_properties(properties) or "all other machines"
        if not cost.label:
            machines = "pip, and other clients that do not know variants"
        count = str(cost.wheels)
        row = (cost.release, cost.label or "(plain)", machines, count, format_bytes(cost.size))
        rows.append((*row, f"{cost.share:.2f}"))
    yield format_table(["", "variant", "for", "wheels", "size", "of the plain"], rows)
    made = sum(item.is_new for item in work.made)
    yield f"  {made} variants made now, {len(work.made) - made} there already"
