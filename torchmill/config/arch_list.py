"""Lists of compute capabilities: parse and check them, find GPUs by name, tell which GPUs a list serves."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from itertools import combinations

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from torchmill.config.matrix import (
    Cell,
    ReleaseTerms,
    base_package,
    format_bounds,
    is_within,
    newest_release,
)
from torchmill.config.model import Capability, Facts, Gpu, Host, Release, Toolkit
from torchmill.core.errors import ConfigError, ImpossibleBuildError, require_choice
from torchmill.core.files import read_table_beside

BRANDS = {"nvidia", "geforce", "quadro", "tesla", "gpu", "laptop", "generation", "nvgpu"}
SEPARATORS = re.compile(r"[;,\s]+")
_BETWEEN_GPUS = re.compile(r"[,;+&/]|\band\b")
NUMBER = re.compile(r"(\d+\.\d)([af]?)")
# How nvcc ("sm_86", "compute_86") and CMake ("86-real") write it.
UNDOTTED = re.compile(
    r"(sm_?|compute_?|lto_?)?(\d{1,2}?)(\d?)([af]?)(-real|-virtual)?", re.IGNORECASE
)
OFFICIAL = "official"  # in place of a list: that of the official build, for all its GPUs
# A virtual GPU is called by its board, letters for the board's memory, the profile's size in GB and its series:
# "GRID A100D-80C" (https://docs.nvidia.com/vgpu/latest/grid-vgpu-user-guide/).
_VIRTUAL = re.compile(
    r"(?:nvidia |grid )*(rtx ?(\d+)|[a-z]{0,2}\d+)[a-z]*-(?:\d+-)?\d+[abcq](?:\d|me)?",
    re.IGNORECASE,
)
WHOLES: dict[str, str] = read_table_beside(__file__, "not_names.toml")["capabilities"]


@dataclass(frozen=True, slots=True)
class NamedGpu:
    """A GPU that a name may mean."""

    gpu: str
    capability: Capability


def gpu_names(text: str) -> list[str]:
    """Return the names in a text: "K80, GTX 960", "K80 and GTX 960"; the text itself where it is no list."""
    return list(filter(None, map(str.strip, _BETWEEN_GPUS.split(text)))) or [text]


def find_gpus(facts: Facts, name: str) -> tuple[NamedGpu, ...]:
    """Return the GPUs that a name may mean: "RTX 3090", "rtx3090", "3090", "NVIDIA A100-SXM4-40GB", "8.6".

    Of several names, "K80, GTX 960", those of each. Raises ConfigError, with near matches, when no GPU is called so.
    """
    if len(names := gpu_names(name)) > 1:
        return tuple(one for each in names for one in find_gpus(facts, each))
    if (number := facts.capability(name.strip())) is not None:
        return (NamedGpu(number.name, number),)
    whole = name.strip().lower()  # "Quadro RTX 4000" is no RTX 4000 Ada
    everything = [NamedGpu(gpu, one) for one in facts.capabilities for gpu in one.gpus]
    if found := [
        one for one in everything if one.gpu.lower() in {whole, whole.removeprefix("nvidia ")}
    ]:
        return tuple(found)
    if virtual := _VIRTUAL.fullmatch(name.strip()):
        return find_gpus(facts, f"Quadro RTX {virtual[2]}" if virtual[2] else virtual[1])
    asked = _words(name)
    _refuse_other_maker(facts, name, [one.gpu for one in everything if _words(one.gpu) == asked])
    if asked and (found := _similar_gpus(everything, asked)):
        return tuple(found)
    known = {" ".join(_words(one.gpu)): one.gpu for one in everything}
    near = get_close_matches(" ".join(asked), known, 3)
    hint = f"; near it are {', '.join(known[one] for one in near)}" if near else ""
    raise ConfigError(
        f"no GPU called '{name}' is known{hint}; `nvidia-smi --query-gpu=name,compute_cap --format=csv` on "
        "that machine shows the compute capability, which can be given in place of the name",
        code="unknown-gpu",
    )


def _similar_gpus(everything: Sequence[NamedGpu], asked: Sequence[str]) -> list[NamedGpu]:
    """Return the GPUs whose names have the words that are asked for, or else those whose names are among these."""
    if found := [one for one in everything if any(_spans("".join(asked), _words(one.gpu)))]:
        return found
    inside = [(one, span) for one in everything for span in _spans("".join(_words(one.gpu)), asked)]
    return [one for one, span in inside if not any(span < other for _, other in inside)]


def _refuse_other_maker(facts: Facts, name: str, alike: Sequence[str]) -> None:
    """Raise ConfigError for the name of a device that is not NVIDIA's; `alike` are GPUs of NVIDIA's with that name."""
    maker = next(
        (
            one
            for one in facts.makers
            if any(re.search(each, name, re.IGNORECASE) for each in one.names)
        ),
        None,
    )
    if maker is None:
        return
    if alike:
        raise ConfigError(
            f"'{name}' may be a device of {maker.maker}, or NVIDIA's {', '.join(alike)}: write the whole name",
            code="unknown-gpu",
        )
    unbuilt = f", and torchmill builds nothing for {maker.platform}" if maker.platform else ""
    raise ConfigError(
        f"'{name}' is a device of {maker.maker}, which has no CUDA{unbuilt}: {maker.instead}",
        code="gpu-of-another-maker",
    )


def gpus_of_host(facts: Facts, gpus: Iterable[Gpu], unknown: str = "") -> tuple[NamedGpu, ...]:
    """Return the GPUs of a machine with their capabilities; an old driver tells only the name.

    `unknown` is why it is not known which GPUs there are, if it is not. Raises ConfigError when there is none, or
    the capability of one is not known.
    """
    found: list[NamedGpu] = []
    for gpu in gpus:
        said = gpu.capability
        known = find_gpus(facts, gpu.name)[0].capability if said is None else facts.capability(said)
        if known is None:
            raise ConfigError(
                f"{gpu.name} has compute capability {gpu.capability}, which gpus.toml lacks",
                code="unknown-capability",
            )
        found.append(NamedGpu(gpu.name, known))
    if not found and unknown:
        raise ConfigError(
            f"cannot tell which GPUs are here ({unknown}): name one, as in --gpu 8.6", code="no-gpu"
        )
    if not found:
        raise ConfigError("no GPU was found here: name one, as in --gpu 'RTX 3090'", code="no-gpu")
    return tuple(found)


def gpu_capability(facts: Facts, gpu: Gpu) -> Capability | None:
    """Return a GPU's compute capability: what the driver says, else what the facts say of its name."""
    try:
        return gpus_of_host(facts, (gpu,))[0].capability
    except ConfigError:  # newer than the facts, or a name that they lack
        return Capability(gpu.capability, "", ()) if gpu.capability else None


def known_capabilities(facts: Facts, gpus: Iterable[Gpu]) -> list[Capability]:
    """Return the compute capabilities of some GPUs, as far as they are known."""
    return [capability for gpu in gpus if (capability := gpu_capability(facts, gpu))]


def _words(name: str) -> list[str]:
    return [word for word in re.findall(r"[a-z0-9]+", name.lower()) if word not in BRANDS]


def _spans(text: str, words: Sequence[str]) -> Iterator[frozenset[int]]:
    """Yield the places of words that follow each other and make up a text."""
    for start, end in combinations(range(len(words) + 1), 2):
        if "".join(words[start:end]) == text:
            yield frozenset(range(start, end))


def capability_key(capability: str) -> tuple[int, int]:
    """Return a capability in an order that people expect: "9.0" before "10.0"."""
    major, _, minor = capability.partition(".")
    return int(major), int(minor)


@dataclass(frozen=True, slots=True)
class ArchTarget:
    """One entry of a list of compute capabilities."""

    capability: str  # "9.0"
    suffix: str = ""  # "a": code for this capability alone; "f": for its family
    ptx: bool = False  # PTX too, which drivers compile for later GPUs

    @property
    def name(self) -> str:
        """Return "9.0a": what toolkits list."""
        return self.capability + self.suffix

    def __str__(self) -> str:
        """Return "9.0a+PTX": what PyTorch reads."""
        return self.name + "+PTX" * self.ptx


def target_key(target: ArchTarget) -> tuple[tuple[int, int], str]:
    """Order targets from the oldest capability to the newest."""
    return capability_key(target.capability), target.suffix


def is_plain_target(name: str) -> bool:
    """Tell whether a target's name is that of a capability, without "a" or "f"."""
    return name[-1].isdigit()


def format_arch_list(targets: Iterable[ArchTarget]) -> str:
    """Return a list as PyTorch writes it, "8.0;8.6+PTX": each target once, the oldest first."""
    each_once = {
        one.name: one for one in sorted(targets, key=lambda one: one.ptx)
    }  # with PTX, if one has it
    return ";".join(map(str, sorted(each_once.values(), key=target_key)))


def is_chip(facts: Facts, capability: str) -> bool:
    """Tell whether a capability is that of systems on a chip, such as Jetson's."""
    known = facts.capability(capability)
    return known is not None and known.tegra


def code_runs(facts: Facts, target: ArchTarget, gpu: Capability) -> bool:
    """Tell whether a target's code runs on GPUs of a capability: on the same, or a later minor of its major.

    NVIDIA does not promise the second for systems on a chip, nor between them and graphics cards.
    """
    if target.capability == gpu.name:
        return True
    if target.suffix == "a" or gpu.tegra or is_chip(facts, target.capability):
        return False
    (major, minor), (gpu_major, gpu_minor) = (
        capability_key(target.capability),
        capability_key(gpu.name),
    )
    return major == gpu_major and minor < gpu_minor


def ptx_runs(facts: Facts, target: ArchTarget, gpu: Capability) -> bool:
    """Tell whether a driver compiles a target's PTX for GPUs of a capability: for every later one."""
    if target.suffix:
        return target.ptx and code_runs(facts, target, gpu)
    return target.ptx and capability_key(target.capability) <= capability_key(gpu.name)


def how_served(facts: Facts, targets: Iterable[ArchTarget], gpu: Capability) -> str | None:
    """Return how a list serves GPUs of a capability: "code", "PTX", or None, not at all."""
    served = serving_target(facts, targets, gpu)
    return served[0] if served else None


def serving_target(
    facts: Facts, targets: Iterable[ArchTarget], gpu: Capability
) -> tuple[str, ArchTarget] | None:
    """Return how a list serves GPUs of a capability, "code" or "PTX", and the entry that does; None: not at all."""
    newest_first = sorted(targets, key=target_key, reverse=True)
    ways = (("code", code_runs), ("PTX", ptx_runs))
    return next(
        ((way, one) for way, runs in ways for one in newest_first if runs(facts, one, gpu)), None
    )


def shortest_arch_list(facts: Facts, gpus: Iterable[Capability]) -> tuple[ArchTarget, ...]:
    """Return the shortest list whose code, without PTX, runs on GPUs of each capability."""
    found: list[ArchTarget] = []
    for gpu in sorted(gpus, key=lambda one: capability_key(one.name)):
        if how_served(facts, found, gpu) is None:
            found.append(ArchTarget(gpu.name))
    return tuple(found)


class UnreadableArchError(ValueError):
    """A word of the list that cannot be read; the message says what to write."""


def parse_arch_list(
    facts: Facts, text: str, torch: str, gpus: Iterable[Gpu] = ()
) -> tuple[list[ArchTarget], list[str]]:
    """Return the targets of a list, in its order, and what is wrong with each word that is none.

    `torch` is the release that the names are read for; `gpus` are those that "native" stands for.
    """
    found: list[ArchTarget] = []
    problems: list[str] = []
    for word in filter(None, SEPARATORS.split(text.strip("'\" "))):
        try:
            found.extend(_targets(facts, word, torch, tuple(gpus)))
        except UnreadableArchError as error:
            problems.append(f"'{word}' {error}")
    if not found and not problems:
        problems.append("it names no compute capability; write one, such as 8.6")
    return found, problems


def _targets(facts: Facts, word: str, torch: str, gpus: tuple[Gpu, ...]) -> Iterator[ArchTarget]:
    """Yield what a word stands for; PTX of a name, or of native, is that of the newest."""
    ptx = word.lower().endswith("+ptx")
    name = word[: -len("+PTX")] if ptx else word
    if written := NUMBER.fullmatch(name):
        yield ArchTarget(written[1], written[2], ptx)
        return
    if name.lower() in WHOLES:
        raise UnreadableArchError(WHOLES[name.lower()])
    known = _native(gpus) if name.lower() == "native" else _named(facts, name, torch)
    for capability in known:
        yield ArchTarget(capability, ptx=ptx and capability == known[-1])


def _native(gpus: tuple[Gpu, ...]) -> tuple[str, ...]:
    if not gpus:
        raise UnreadableArchError(
            "stands for the GPUs of this machine, and none was found; `invoke arch --gpu NAME` shows the "
            "capability of a GPU"
        )
    if silent := [gpu.name for gpu in gpus if gpu.capability is None]:
        raise UnreadableArchError(
            f"stands for the GPUs of this machine, and the driver does not report the capability of "
            f"{', '.join(silent)}; `invoke arch --gpu NAME` does"
        )
    return tuple(sorted({gpu.capability for gpu in gpus if gpu.capability}, key=capability_key))


def _named(facts: Facts, name: str, torch: str) -> tuple[str, ...]:
    """Return the capabilities behind an architecture's name, however its letters are cased."""
    known = {
        one.name.casefold(): one.means for one in facts.arch_names if is_within(one.release, torch)
    }
    if name.casefold() in known:
        return known[name.casefold()]
    for one in facts.arch_names:
        if one.name.casefold() == name.casefold():
            raise UnreadableArchError(
                f"is not a name that torch {torch} knows; write {';'.join(one.means)}"
            )
    raise UnreadableArchError(_advice(name, known))


def _advice(name: str, known: Mapping[str, tuple[str, ...]]) -> str:
    """Return what to write instead of a word that is neither a capability nor a name."""
    if (code := UNDOTTED.fullmatch(name)) and (code[2] or code[3]):
        virtual = (code[1] or "").lower().startswith("compute") or (
            code[5] or ""
        ).lower() == "-virtual"
        whole = f"{code[2]}.{code[3] or 0}{code[4]}"
        return f"is not how PyTorch writes it: write {whole}{'+PTX' * virtual}"
    if before := re.match(r"\d+\.\d(?=\()", name):
        return f"asks for code made from another capability's PTX: write {before[0]}"
    if near := get_close_matches(name.casefold(), known, 1):
        return f"is not an architecture; did you mean {near[0].title().replace('ptx', 'PTX')}?"
    return "is neither a compute capability, such as 8.6 or 9.0a+PTX, nor an architecture's name"


def unserved_capabilities(facts: Facts, code: str, listed: str) -> list[str]:
    """Return the capabilities of a list whose GPUs some code does not run on, nor a driver's PTX of it.

    Both are written as TORCH_CUDA_ARCH_LIST is: "7.0;8.6+PTX". PTX that the list asks for is not missed.
    """
    there, wanted = parse_targets(facts, code), parse_targets(facts, listed)
    known = {one.capability: facts.capability(one.capability) for one in wanted}
    return [
        name for name, gpu in known.items() if gpu is None or how_served(facts, there, gpu) is None
    ]


def listed_capabilities(facts: Facts, listed: str) -> list[Capability]:
    """Return the capabilities of a list, as far as they are known."""
    known = (facts.capability(target.capability) for target in parse_targets(facts, listed))
    return [one for one in known if one is not None]


def without_cudnn(version: str, capabilities: Iterable[Capability]) -> list[str]:
    """Return for which capabilities a version of cuDNN has no code."""
    return list(
        dict.fromkeys(one.name for one in capabilities if Version(version) not in one.cudnn)
    )


def parse_targets(facts: Facts, listed: str) -> list[ArchTarget]:
    """Return what a list that can be read says; nothing of an empty one."""
    return parse_arch_list(facts, listed, newest_release(facts).torch_version)[0]


def format_toolkit_range(toolkits: Sequence[Toolkit]) -> str:
    """Return "11.8", or "11.1 to 13.3"; "none" of no toolkits, such as those of the sample's facts."""
    return (
        " to ".join(dict.fromkeys(one.version for one in (*toolkits[:1], *toolkits[-1:]))) or "none"
    )


def toolkits_with_target(facts: Facts, name: str) -> list[Toolkit]:
    """Return the toolkits that make code for a target which a driver of its boards runs, oldest first."""
    gpu = facts.capability(name)
    return [
        one
        for one in facts.toolkits
        if name in one.capabilities and (not gpu or one.version in gpu.jetpack)
    ]


def first_makers(facts: Facts, gpu: Capability, toolkit: Toolkit) -> str:
    """Return the first toolkit and the first official build with code for a capability itself.

    That is "CUDA 12.8, torch 2.7.0 (cu128)"; "" if none is known, or `toolkit` is newer than the first.
    """
    able = toolkits_with_target(facts, gpu.name)
    if not able or Version(able[0].version) < Version(toolkit.version):
        return ""
    arch = "aarch64" if gpu.tegra else "x86_64"
    builds = (
        (release, cuda, said.capabilities.get(arch, ""))
        for release in facts.releases[base_package(facts).name]
        for cuda, said in release.cuda_official.items()
    )
    having = (
        f"{release} (cu{cuda.replace('.', '')})"
        for release, cuda, listed in builds
        if gpu.name in {target.capability for target in parse_targets(facts, listed)}
    )
    return ", ".join(filter(None, (f"CUDA {able[0].version}", next(having, ""))))


def find_toolkit(facts: Facts, option: str, version: str) -> Toolkit:
    """Return the toolkit of a version: "11.8", or "cu118". Raises ConfigError that names all of them."""
    by_variant = {one.variant: one for one in facts.toolkits}
    by_version = {one.version: one for one in facts.toolkits}
    return (
        by_variant.get(version)
        or by_version[require_choice(option, version, by_version, "unknown-toolkit")]
    )


def can_build_with(facts: Facts, release: Release, toolkit: Toolkit) -> bool:
    """Tell whether any build of a release with a toolkit is possible."""
    terms = ReleaseTerms.for_release(facts, release)
    return any(
        build.cuda == toolkit.version and terms.allow(build)
        for arch in release.arches
        for build in terms.builds(arch)
    )


def find_arch_problems(
    facts: Facts, targets: Iterable[ArchTarget], toolkit: Toolkit | None, release: Release | None
) -> Iterator[str]:
    """Yield what stands against a list, each with the remedy; without a toolkit any is meant, and so on."""
    for target in targets:
        if not toolkits_with_target(facts, target.name):
            yield _nobody(facts, target)
        elif toolkit and target.name not in toolkit.capabilities:
            yield _toolkit_reason(facts, target, toolkit, release)
        elif release and (reason := _release_reason(facts, target, release)):
            yield reason + _instead(facts, target, toolkit, release)
        elif release and not toolkit and (reason := _out_of_reach(facts, target, release)):
            yield reason


def _nobody(facts: Facts, target: ArchTarget) -> str:
    major, _ = capability_key(target.capability)
    names = {name for one in facts.toolkits for name in one.capabilities if is_plain_target(name)}
    near = [name for name in sorted(names, key=capability_key) if capability_key(name)[0] == major]
    return f"{target.name}: no toolkit makes code for it" + (
        f"; there is {', '.join(near)}" if near else ""
    )


def _toolkit_reason(
    facts: Facts, target: ArchTarget, toolkit: Toolkit, release: Release | None
) -> str:
    able = toolkits_with_target(facts, target.name)
    text = f"{target.name}: CUDA {toolkit.version} makes no code for it, CUDA {format_toolkit_range(able)} does"
    if release is not None:
        fitting = [one for one in able if can_build_with(facts, release, one)]
        text += f"; {release} builds with " + (
            f"CUDA {format_toolkit_range(fitting)}" if fitting else "none of them"
        )
        text += "" if fitting else _first_makers_clause(facts, target, toolkit, release)
    return text + _instead(facts, target, toolkit, release)


def _first_makers_clause(
    facts: Facts, target: ArchTarget, toolkit: Toolkit, release: Release
) -> str:
    gpu = facts.capability(target.capability) if release.torch is None else None
    first = first_makers(facts, gpu, toolkit) if gpu else ""
    return f"; the first with code for {target.capability} are {first}" if first else ""


def _out_of_reach(facts: Facts, target: ArchTarget, release: Release) -> str | None:
    """Return why no build of a release has code for a target: its toolkits are others."""
    able = toolkits_with_target(facts, target.name)
    if any(can_build_with(facts, release, one) for one in able):
        return None
    toolkits = f"the toolkits that make code for it, CUDA {format_toolkit_range(able)}"
    return f"{target.name}: {release} builds with none of {toolkits}"


def _release_reason(facts: Facts, target: ArchTarget, release: Release) -> str | None:
    torch, own = release.torch_version, facts.packages[release.package].capabilities
    if not is_within(own, target.capability):
        return f"{target.name}: {release.package} has kernels only for {format_bounds(own or SpecifierSet())}"
    if release.torch is None:
        return _unread(facts, target, torch)
    gpu = facts.capability(target.capability)
    takers = gpu.extensions.get(target.name) if gpu else None
    if gpu is None or (takers is not None and is_within(takers, torch)):
        return None
    others = f"that of torch {format_bounds(takers)} does" if takers else "that of no release does"
    return (
        f"{target.name}: {release.package} is built by torch {torch}'s cpp_extension, "
        f"which does not take it ({others})"
    )


def _unread(facts: Facts, target: ArchTarget, torch: str) -> str | None:
    """Return why the CMake of a release of torch stops at a target."""
    wanted = ["two_digits"] if capability_key(target.capability)[0] >= 10 else []  # noqa: PLR2004 - two digits
    for key in (*wanted, *target.suffix):
        able = facts.arch_spelling.get(key)
        if able is not None and not is_within(able, torch):
            return f"{target.name}: the CMake of torch {torch} cannot read it (that of torch {format_bounds(able)} can)"
    return None


def _instead(
    facts: Facts, target: ArchTarget, toolkit: Toolkit | None, release: Release | None
) -> str:
    """Return what else serves the GPUs that a target was meant for, or nothing."""
    gpu = facts.capability(target.capability)
    able = {name for one in ([toolkit] if toolkit else facts.toolkits) for name in one.capabilities}
    names = sorted(filter(is_plain_target, able), key=capability_key, reverse=True)
    fitting = [
        ArchTarget(name, ptx=True)
        for name in names
        if release is None or _release_reason(facts, ArchTarget(name), release) is None
    ]
    if gpu is None:
        return ""
    for one in fitting:
        if one.capability == gpu.name:
            return f"; {one.name} can stand in for it"
        if code_runs(facts, one, gpu):
            return f"; {one.name} can stand in for it: its code runs on {gpu.name} too"
    for one in fitting:
        if ptx_runs(facts, one, gpu) and not is_chip(facts, one.capability):
            gap = library_gap(toolkit, gpu)
            return f"; {one} can stand in for it: drivers compile its PTX for {gpu.name}{f', but {gap}' if gap else ''}"
    return ""


def library_gap(toolkit: Toolkit | None, gpu: Capability) -> str:
    """Return what PTX does not make up for: that a toolkit's own libraries may have no code for a GPU; "" if they have.

    NVIDIA compiles them, and a toolkit that makes no code for a GPU is older or newer than it.
    """
    if toolkit is None or gpu.name in toolkit.capabilities:
        return ""
    return f"cuBLAS, cuDNN and cuFFT of CUDA {toolkit.version} may have no code for it"


def resolve_arch_list(facts: Facts, cell: Cell, host: Host, asked: str | None) -> str | None:
    """Return the value of TORCH_CUDA_ARCH_LIST for a cell, None for a build without CUDA.

    Without a list, or with the word "official", it is that of the official build, if there is CUDA.

    Raises ConfigError for a list that cannot be read, ImpossibleBuildError for one that the toolkit or
    the release does not take.
    """
    if asked is None or asked.strip().lower() == OFFICIAL:
        return official_arch_list(facts, cell)
    toolkit = facts.toolkit(cell.build.cuda)
    if toolkit is None:
        raise ConfigError(
            f"--arch-list '{asked}': {cell.build.identifier(host.arch)} is built without CUDA; leave the "
            "option out, or take a CUDA build (`nox -l` lists them)",
            code="arch-list-without-cuda",
        )
    return _format_for_package(
        facts, cell, check_arch_list(facts, asked, toolkit, cell.release, host.gpus)
    )


def _format_for_package(facts: Facts, cell: Cell, targets: Iterable[ArchTarget]) -> str:
    """Return a list as PyTorch writes it, "9.0" as "9.0a" where the package's kernels are empty without."""
    alone = facts.packages[cell.release.package].chip_code
    return format_arch_list(
        replace(one, suffix=one.suffix or "a" * (one.capability in alone)) for one in targets
    )


def check_arch_list(
    facts: Facts, asked: str, toolkit: Toolkit | None, release: Release | None, gpus: Iterable[Gpu]
) -> list[ArchTarget]:
    """Return what a list asks for; without a toolkit, or a release, it need only fit some.

    Raises ConfigError and ImpossibleBuildError as `resolve_arch_list` does, with everything that stands against it.
    """
    targets, unreadable = parse_arch_list(
        facts, asked, (release or newest_release(facts)).torch_version, gpus
    )
    against = [*unreadable, *find_arch_problems(facts, targets, toolkit, release)]
    if against:
        head = f"arch list '{asked}' cannot be used"
        head += f" for {release}" if release else ""
        head += f" with CUDA {toolkit.version}" if toolkit else ""
        message = "\n".join((f"{head}:", *(f"  {line}" for line in dict.fromkeys(against))))
        if unreadable:
            raise ConfigError(message, code="arch-list-invalid")
        raise ImpossibleBuildError(message, code="arch-list-impossible")
    return targets


def official_arch_list(facts: Facts, cell: Cell) -> str | None:
    """Return the list of the official build with the nearest toolkit, as far as the cell's own makes it.

    The nearest is the newest that is not newer; where all are newer, the oldest. PTX of a capability that
    is left out goes to the next one, so that GPUs which the list does not name are still served. A toolkit
    for Jetson boards makes code for these: no official build serves them.
    """
    toolkit = facts.toolkit(cell.build.cuda)
    listed = _nearest(cell, toolkit) if toolkit else None
    if toolkit is None or listed is None:
        return None
    targets, _ = parse_arch_list(facts, listed, cell.release.torch_version)
    own = facts.packages[cell.release.package].capabilities
    kept = [
        one
        for one in targets
        if one.name in toolkit.capabilities and is_within(own, one.capability)
    ]
    lost = [capability_key(one.capability) for one in targets if one.ptx and one not in kept]
    if kept and lost:
        later = [one for one in kept if capability_key(one.capability) > lost[-1]]
        heir = (later or kept[-1:])[0]
        kept.append(ArchTarget(heir.capability, heir.suffix, ptx=True))
    return _format_for_package(facts, cell, kept) or None


def _nearest(cell: Cell, toolkit: Toolkit) -> str | None:
    if toolkit.jetson and cell.build.arch == "aarch64":
        return ";".join(toolkit.jetson)
    lists = {
        Version(cuda): said.capabilities.get(cell.build.arch, said.capabilities.get("x86_64", ""))
        for cuda, said in cell.release.cuda_official.items()
    }
    known = sorted(cuda for cuda, listed in lists.items() if listed)
    older = [cuda for cuda in known if cuda <= Version(toolkit.version)]
    return lists[(older[-1:] or known[:1])[0]] if known else None
