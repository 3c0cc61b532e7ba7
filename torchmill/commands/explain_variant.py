"""`invoke explain PROJECT --index INDEX`: which wheel variant a machine gets, and why."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from torchmill.commands.command import CommandOutput
from torchmill.config import wheel_variants
from torchmill.config.arch_list import capability_key
from torchmill.config.facts import Facts
from torchmill.config.gpu_names import find_gpus
from torchmill.config.wheel_variants import WheelVariant
from torchmill.core.console import format_table
from torchmill.core.errors import ConfigError
from torchmill.core.paths import Layout
from torchmill.deliver import variant_resolver
from torchmill.deliver.index.variant_files import SUFFIX
from torchmill.deliver.variant_resolver import ForcedGpu, ResolverAnswer
from torchmill.fetch import download, package_index
from torchmill.host.host import Host
from torchmill.host.measurement import read_or_measure_host
from torchmill.host.native import native_arch, processor_flags
from torchmill.plan import drivers, variant_choice
from torchmill.plan.variant_choice import MachineProperties
from torchmill.wheel import variant_metadata


class ListedVariants(NamedTuple):
    """The variants of a version in an index."""

    project: str
    version: str
    variants: Sequence[WheelVariant]


class MachineReading(NamedTuple):
    """What is known of a machine that decides on variants."""

    properties: MachineProperties
    gpu: ForcedGpu | None  # the newest of its GPUs, with its driver; None without
    processor: MachineProperties
    notes: Sequence[str]  # what was assumed, in sentences


def explain_variant(
    facts: Facts, layout: Layout, requirement: str, index: str, *, host: str = "", tag: str = ""
) -> CommandOutput:
    """Return which variant of a project in an index a machine gets, by the model and by uv.

    `index` is the folder or the address of an index, `host` the description of a machine; by
    default it is this machine. Raises ConfigError for a `tag`, because the requirement names the
    version, and for a requirement that names no version of the index; NetworkError if the index
    cannot be read, DeliveryError for metadata that is not sound.
    """
    if tag:
        raise ConfigError(
            "invoke explain: with --index, the version stands behind the project, as in "
            "torch==2.15.0: leave out --tag",
            code="contradictory-options",
        )
    listed = _read_variants(requirement, index)
    machine = read_or_measure_host(host, layout.root)
    reading = read_machine(facts, machine)
    expected = variant_choice.choose_variant(listed.variants, reading.properties)
    answer = _ask_resolver(listed.variants, reading, described=bool(host))
    label = answer.label if answer.client else expected.label
    rows = []
    for variant in sorted(listed.variants, key=lambda variant: variant.label != label):
        rows.append((variant.label, _reason(variant, label, reading.properties)))
    lines = [
        f"{listed.project} {listed.version}: this machine gets {label or 'the plain wheel'}",
        format_table(["variant", "why"], rows),
        *reading.notes,
        _describe_answer(answer, expected),
    ]
    data = {
        "project": listed.project,
        "version": listed.version,
        "label": label,
        "expected": expected.label,
        "client": answer.client,
        "problem": answer.problem,
        "variants": dict(rows),
        "notes": list(reading.notes),
    }
    return CommandOutput("\n".join(lines), data)


def _read_variants(requirement: str, index: str) -> ListedVariants:
    """Return the variants of the version that a requirement names, by default of the newest."""
    try:
        wanted = Requirement(requirement)
    except InvalidRequirement as error:
        raise ConfigError(
            f"{requirement}: with --index, name a project and a version, as torch==2.15.0 ({error})",
            code="invalid-requirement",
        ) from None
    project = canonicalize_name(wanted.name)
    contents = _read_index(index, project)
    versions = {}
    for name in contents:
        version = _version_of(name)
        if version is not None and wanted.specifier.contains(version, prereleases=True):
            versions[version] = name
    if not versions:
        raise ConfigError(
            f"{index} has no variants of {requirement}: `invoke index --variants` makes them",
            code="no-variants",
        )
    newest = max(versions)
    name = versions[newest]
    variants = variant_metadata.parse_metadata(contents[name], name)
    return ListedVariants(project, str(newest), tuple(variants.values()))


def _version_of(name: str) -> Version | None:
    """Return the version in the name of the metadata of variants: "torch-2.15.0-variants.json"."""
    try:
        return Version(name.removesuffix(SUFFIX).partition("-")[2])
    except ValueError:  # also for a number of more digits than Python reads
        return None


def _read_index(index: str, project: str) -> Mapping[str, bytes]:
    """Return the metadata of a project's variants in an index, by file name."""
    if not index.startswith(("https://", "http://")):
        folder = Path(unquote(urlsplit(index).path) if index.startswith("file:") else index)
        page = folder / project / "index.html"
        if not page.is_file():
            raise ConfigError(
                f"--index {index}: has no {project}/index.html: name the folder or the address of "
                "an index",
                code="no-index",
            )
        local_contents = {}
        base = page.absolute().as_uri()
        for file in package_index.parse_html_page(page.read_text("utf-8"), base):
            if file.name.endswith(SUFFIX):
                path = Path(unquote(urlsplit(file.url).path))
                local_contents[file.name] = path.read_bytes()
        return local_contents
    session = download.http_session()
    contents = {}
    for file in package_index.project_files(session, index, project):
        if file.name.endswith(SUFFIX):
            _, contents[file.name] = download.read_body(session, file.url, {})
    return contents


def read_machine(facts: Facts, machine: Host) -> MachineReading:
    """Return what a client's providers tell of a machine, as far as it is described.

    Raises ConfigError for a GPU without a capability whose name the facts do not know.
    """
    notes = []
    capabilities = []
    for device in machine.gpus.devices:
        capability = device.capability or find_gpus(facts, device.name)[0].capability.name
        capabilities.append(capability)
    cuda = ""
    if capabilities:
        driver = machine.gpus.running_driver
        cuda = drivers.driver_cuda(facts, driver)
        if not driver:
            notes.append(f"its driver is not known, and taken for one of CUDA {cuda}")
    features = machine.platform.processor_features
    processor = variant_choice.processor_properties(machine.arch, features)
    if processor and not features:
        notes.append(f"its processor is not described, and taken for the oldest of {machine.arch}")
    gpu = None
    if capabilities:
        gpu = ForcedGpu(max(capabilities, key=capability_key), cuda)
    properties = variant_choice.machine_properties(capabilities, cuda, processor)
    return MachineReading(properties, gpu, processor, notes)


def _ask_resolver(
    variants: Sequence[WheelVariant], reading: MachineReading, *, described: bool
) -> ResolverAnswer:
    """Return what uv says, or why it was not asked."""
    if not described:
        return variant_resolver.ask_uv(variants)
    depends_on_processor = any(
        required.namespace != variant_choice.NVIDIA
        for variant in variants
        for required in variant.properties
    )
    here = variant_choice.processor_properties(native_arch(), processor_flags())
    if depends_on_processor and reading.processor != here:
        problem = "uv tells the processor of the machine it runs on, and this is another one"
        return ResolverAnswer("", problem=problem)
    if reading.gpu is None:
        return ResolverAnswer("", problem="uv cannot be told that a machine has no GPU")
    return variant_resolver.ask_uv(variants, reading.gpu)


def _reason(variant: WheelVariant, label: str, machine: MachineProperties) -> str:
    """Return why a machine gets a variant, or does not, as a clause."""
    if variant.label == label:
        properties = wheel_variants.describe_properties(variant.properties)
        return properties or "no other runs there"
    missing = variant_choice.missing_properties(variant, machine)
    if missing and not variant_choice.runs_on(variant, machine):
        return f"needs {wheel_variants.describe_properties(missing)}"
    return "runs there; another goes before it"


def _describe_answer(answer: ResolverAnswer, expected: WheelVariant) -> str:
    """Return what the real resolver said, in a sentence."""
    if not answer.client:
        return f"by the order of PEP 825; uv was not asked: {answer.problem}"
    if answer.label == expected.label:
        return f"{answer.client} takes the same"
    return (
        f"{answer.client} takes {answer.label or 'the plain wheel'}, where the order of PEP 825 "
        f"gives {expected.label}: the client decides"
    )
