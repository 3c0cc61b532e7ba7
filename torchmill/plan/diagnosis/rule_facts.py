"""What the rule book says of known facts: which gcc this nvcc takes, whether it knows the GPU.

Each function computes facts of the origin "rules" from others. The rules themselves are those by
which wheels are planned and machines are examined: toolkits.toml, the rules of packages, releases.
"""

from collections.abc import Iterable, Iterator, Sequence

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from torchmill.config import distributions
from torchmill.config.arch_list import ArchTarget, is_plain_target
from torchmill.config.facts import Facts
from torchmill.config.gpu import Gpu
from torchmill.config.gpu_names import gpu_capability
from torchmill.config.release import Release
from torchmill.config.release_lookup import paired_release
from torchmill.config.rule import Rule
from torchmill.config.served_gpus import code_runs, unserved_capabilities
from torchmill.config.toolkit import Toolkit
from torchmill.config.versions import cuda_label, is_version, is_within
from torchmill.plan.arch_toolkits import format_toolkit_range, toolkits_with_target
from torchmill.plan.diagnosis.compiler_choice import (
    MAJORS,
    choose_gcc,
    fitting_majors,
    parse_distribution,
    takes_major,
    torch_gcc_bounds,
    widely_taken_majors,
)
from torchmill.plan.diagnosis.project_commands import project_facts
from torchmill.plan.diagnosis.requested_versions import request_facts
from torchmill.plan.diagnosis.situation import Fact, Situation
from torchmill.plan.diagnosis.source_edits import edit_command
from torchmill.plan.diagnosis.toolkit_facts import (
    toolkit_parts_facts,
    toolkit_place_facts,
    toolset_facts,
)
from torchmill.plan.diagnosis.torch_commands import index_facts, torch_facts
from torchmill.plan.drivers import is_known_older

_TORCH = "torch"
_DISTRIBUTION_NVCC = "/usr/bin/nvcc"  # of the distribution's own package
_PARTNERS = ("torchvision", "torchaudio")

# The C libraries that conda-forge has a sysroot of: https://anaconda.org/conda-forge/sysroot_linux-64/files
_CONDA_SYSROOTS = ("2.17", "2.28", "2.34", "2.39")
# What compilers called a standard before it was published -> the name that it got.
_DRAFT_STANDARDS = {"0x": "11", "1y": "14", "1z": "17", "2a": "20", "2b": "23"}
_STANDARDS = frozenset({"11", "14", "17", "20", "23"})
_OLDEST_STANDARD = 98  # C++98; the names of all later ones begin with 0, 1 or 2

# Few still have an older torch than this one, of 2018.
_OLDEST_TORCH = Version("1.0")


def add_rule_facts(facts: Facts, situation: Situation, name: str = "") -> Situation:
    """Return a situation with all that the rules say about it; what is known stays.

    Only a toolkit that no tool printed gives way to that of the distribution's nvcc. `name` is the
    one in the line that shows the cause: a compute capability, "75", is judged.
    """
    nvcc = distribution_nvcc(situation)
    cuda = situation.facts.get("cuda")
    if nvcc is not None and (cuda is None or cuda.is_stated):
        situation = situation.with_fact(nvcc)
    situation = situation.with_facts(_torch_facts(facts, situation))
    situation = situation.with_facts(_torch_cuda_facts(situation))
    situation = situation.with_facts(_named_capability(facts, name))
    situation = situation.with_facts(_gpu_facts(facts, situation))
    situation = situation.with_facts(_family_facts(situation))
    for compute in _RULES:
        situation = situation.with_facts(compute(facts, situation))
    toolkit = _toolkit(facts, situation.value("cuda"))
    situation = situation.with_facts(toolset_facts(facts, situation, toolkit))
    for describe in (toolkit_place_facts, toolkit_parts_facts, _edit_facts, _came_facts):
        situation = situation.with_facts(describe(situation))
    return situation


def _computed(situation: Situation, name: str, value: str, *basis: str) -> Fact:
    """Return a fact of the rules, computed from others that are known."""
    return situation.computed(name, value, *basis)


def _plain_version(text: str | None) -> str | None:
    """Return "2.1.0" of "2.1.0+cu121"; None for what is no version."""
    if text is None:
        return None
    try:
        return Version(text).base_version
    except InvalidVersion:
        return None


def torch_release(facts: Facts, torch: str | None) -> Release | None:
    """Return the release of torch that a version names, or None; of "2.1" the first of 2.1.*."""
    version = _plain_version(torch)
    if version is None:
        return None
    releases = facts.releases.get(_TORCH, ())
    for release in releases:
        if release.version == version or release.version.startswith(f"{version}."):
            return release
    return None


def _toolkit(facts: Facts, version: str | None) -> Toolkit | None:
    """Return the toolkit of a version that a log names, "11.8" or "11.8.89"; None if unknown."""
    if version is None:
        return None
    return facts.toolkit(".".join(version.split(".")[:2]))


def _torch_facts(facts: Facts, situation: Situation) -> Iterator[Fact]:
    """Yield what a version of torch means: its plain form, its wheels, Triton and its partners."""
    torch = situation.value("torch")
    version = _plain_version(torch)
    if version:
        yield _computed(situation, "torch_version", version, "torch")
        yield _computed(situation, "torch_minor", ".".join(version.split(".")[:2]), "torch")
    release = torch_release(facts, torch)
    if release is not None:
        triton = release.wheel.partners.get("triton")
        if triton:
            yield _computed(situation, "torch_triton_version", triton, "torch")
            yield _computed(situation, "torch_triton", ".".join(triton.split(".")[:2]), "torch")
        for package in _PARTNERS:
            partner = paired_release(facts, package, release)
            if partner is not None:
                yield _computed(situation, package, partner.version, "torch")
        usual = release.cuda.pypi
        is_plain = torch is not None and "+" not in torch
        # A wheel from PyPI for Linux has no label: its CUDA is the one of the release. conda's torch
        # has none either, and another CUDA.
        is_from_pypi = is_plain and situation.value("conda") is None
        if usual and is_from_pypi and situation.value("system") == "linux":
            yield _computed(situation, "torch_cuda", usual, "torch")


def _torch_cuda_facts(situation: Situation) -> Iterator[Fact]:
    """Yield how the CUDA of torch is written in names, "cu117", and if a library is of another."""
    cuda = situation.value("torch_cuda")
    library = situation.value("cuda_library_major")
    if cuda and library:
        fit = "same" if library == cuda.partition(".")[0] else "other"
        yield _computed(situation, "library_fit", fit, "cuda_library_major", "torch_cuda")
    if cuda:
        yield _computed(situation, "torch_index", cuda_label(cuda), "torch_cuda")
        yield _computed(situation, "torch_cuda_dashed", cuda.replace(".", "-"), "torch_cuda")
        yield _computed(situation, "torch_cuda_major", cuda.partition(".")[0], "torch_cuda")


def _named_capability(facts: Facts, name: str) -> Iterator[Fact]:
    """Yield the compute capability that the line of the cause names, 7.5 for "75", and its digits."""
    digits = name.replace(".", "").rstrip("af")
    if digits.isdigit() and len(digits) in (2, 3):
        capability = f"{digits[:-1]}.{digits[-1]}"
        if facts.capability(capability):
            yield Fact("named_capability", capability, "rules")
            yield Fact("named_digits", digits, "rules")


def _gpu_facts(facts: Facts, situation: Situation) -> Iterator[Fact]:
    """Yield the compute capability of the machine's GPU, and whether the line names it.

    Also the newest torch whose official wheels have code for that GPU, and the label of these.
    """
    capability = situation.value("gpu_capability")
    name = situation.value("gpu")
    basis = "gpu_capability"
    if capability is None and name:
        gpu = gpu_capability(facts, Gpu(name.strip()))
        capability = gpu.name if gpu else None
        basis = "gpu"
        if capability:
            yield _computed(situation, "gpu_capability", capability, "gpu")
    newest_torch = _newest_torch_for(facts, capability) if capability else None
    if newest_torch is not None:
        release, cuda = newest_torch
        yield _computed(situation, "gpu_torch", release.version, basis)
        yield _computed(situation, "gpu_index", cuda_label(cuda), basis)
    named_capability = situation.value("named_capability")
    if capability and named_capability:
        answer = "yes" if capability == named_capability else "no"
        yield _computed(situation, "named_is_gpu", answer, basis)


def _newest_torch_for(facts: Facts, capability: str) -> tuple[Release, str] | None:
    """Return the newest release whose official wheels have code for a GPU, and their CUDA.

    None if no such release is recorded.
    """
    gpu = facts.capability(capability)
    if gpu is None:
        return None
    for release in reversed(facts.releases.get(_TORCH, ())):
        for cuda, official in release.cuda.official.items():
            listed = official.capabilities.get("x86_64", "")
            if listed and not unserved_capabilities(facts, listed, capability):
                return release, cuda
    return None


def _capability_fit(facts: Facts, toolkit: Toolkit, capability: str) -> str:
    """Return whether a toolkit knows a compute capability: "known", "too new" or "dropped".

    "unknown" if no toolkit does.
    """
    if capability in toolkit.capabilities:
        return "known"
    serving = toolkits_with_target(facts, capability)
    if not serving:
        return "unknown"
    is_newer = Version(serving[0].version) > Version(toolkit.version)
    return "too new" if is_newer else "dropped"


def _fit_of_any_toolkit(facts: Facts, serving: Sequence[Toolkit]) -> str:
    """Return how a toolkit that refuses a capability must fit it, whichever it is; "" if unknown.

    If every newer toolkit serves it, the one that refuses it is older; if every older one does, it
    is newer.
    """
    if not serving:
        return ""
    is_oldest = serving[0].version == facts.toolkits[0].version
    is_newest = serving[-1].version == facts.toolkits[-1].version
    if is_oldest and not is_newest:
        return "dropped"
    return "too new" if is_newest and not is_oldest else ""


def _toolkit_facts(facts: Facts, situation: Situation) -> Iterator[Fact]:
    """Yield what the toolkit of nvcc is called, and how it fits that of torch.

    Also the label of the wheels that are nearest to it, and the newest GPUs that it has code for.
    """
    cuda = situation.value("cuda")
    torch_cuda = situation.value("torch_cuda")
    if cuda is None:
        return
    yield _computed(situation, "the_cuda", f"CUDA {cuda}", "cuda")
    yield _computed(situation, "of_cuda", f"of CUDA {cuda}", "cuda")
    toolkit = _toolkit(facts, cuda)
    if toolkit is not None:
        index = _nearest_index(facts, toolkit)
        if index:
            yield _computed(situation, "cuda_index", index, "cuda")
        targets = [target for target in toolkit.capabilities if target[-1].isdigit()]
        if targets:
            yield _computed(situation, "cuda_newest_target", targets[-1], "cuda")
    if torch_cuda:
        fit = "same"
        if cuda.split(".")[:2] != torch_cuda.split(".")[:2]:
            fit = "other minor" if cuda.split(".")[0] == torch_cuda.split(".")[0] else "other major"
        yield _computed(situation, "cuda_fit", fit, "cuda", "torch_cuda")


def _nearest_index(facts: Facts, toolkit: Toolkit) -> str:
    """Return the label of the official wheels whose CUDA is nearest to a toolkit's, "cu121".

    They are of the same major version: the same CUDA, else the next newer, else the newest. "" if
    there are none.
    """
    official: set[str] = set()
    for release in facts.releases.get(_TORCH, ()):
        official.update(release.cuda.official)
    version = Version(toolkit.version)
    versions = sorted(Version(cuda) for cuda in official if Version(cuda).major == version.major)
    if not versions:
        return ""
    newer = [other for other in versions if other >= version]
    nearest = newer[0] if newer else versions[-1]
    return cuda_label(f"{nearest.major}.{nearest.minor}")


def _named_cuda_facts(facts: Facts, situation: Situation) -> Iterator[Fact]:
    """Yield a toolkit that has the name which the compiler does not know, and its wheels' label.

    It is the one that torch was built with, if that has it; else the next older or newer one.
    """
    gone = situation.value("gone_in_cuda")
    since = situation.value("came_in_cuda")
    if gone is None and since is None:
        return
    fitting = [
        toolkit
        for toolkit in facts.toolkits
        if (gone is None or Version(toolkit.version) < Version(gone))
        and (since is None or Version(toolkit.version) >= Version(since))
    ]
    if not fitting:
        return
    chosen = fitting[0] if gone is None else fitting[-1]
    of_torch = _toolkit(facts, situation.value("torch_cuda"))
    if of_torch is not None:
        answer = "yes" if of_torch in fitting else "no"
        yield _computed(situation, "cuda_of_torch_has_it", answer, "torch_cuda")
        chosen = of_torch if of_torch in fitting else chosen
    yield _computed(situation, "cuda_with_name", chosen.version, "torch_cuda")
    index = _nearest_index(facts, chosen)
    if index:
        yield _computed(situation, "index_with_name", index, "torch_cuda")


def _capability_facts(facts: Facts, situation: Situation) -> Iterator[Fact]:
    """Yield how the toolkit of nvcc fits the GPU that the line names, and the machine's."""
    toolkit = _toolkit(facts, situation.value("cuda"))
    for name in ("named", "gpu"):
        capability = situation.value(f"{name}_capability")
        if capability is None:
            continue
        serving = toolkits_with_target(facts, capability)
        basis = "gpu_capability" if name == "gpu" else ""
        if serving:
            known_by = format_toolkit_range(serving)
            yield _computed(situation, f"{name}_toolkits", known_by, basis)
            yield _computed(situation, f"{name}_first_toolkit", serving[0].version, basis)
            yield _computed(situation, f"{name}_last_toolkit", serving[-1].version, basis)
        if name == "named":
            yield from _fit_of_torch(facts, situation, capability)
            yield from _older_target(facts, situation, toolkit, capability)
        if toolkit is not None:
            fit = _capability_fit(facts, toolkit, capability)
        else:
            fit = _fit_of_any_toolkit(facts, serving)
        if fit:
            yield _computed(situation, f"{name}_fit", fit, "cuda", basis)


def _fit_of_torch(facts: Facts, situation: Situation, capability: str) -> Iterator[Fact]:
    """Yield how torch's CUDA fits a capability, and the toolkit to take.

    It is that of torch, else the one that a person says to have, else the first that knows it.
    """
    serving = toolkits_with_target(facts, capability)
    of_torch = _toolkit(facts, situation.value("torch_cuda"))
    if of_torch is not None:
        fit = _capability_fit(facts, of_torch, capability)
        yield _computed(situation, "named_fit_of_torch", fit, "torch_cuda")
    if serving:
        stated = _toolkit(facts, situation.value("stated_cuda"))
        chosen = next((toolkit for toolkit in (of_torch, stated) if toolkit in serving), None)
        chosen = chosen or serving[0]
        yield _computed(situation, "toolkit_for_named", chosen.version, "torch_cuda")


def _older_target(
    facts: Facts, situation: Situation, toolkit: Toolkit | None, capability: str
) -> Iterator[Fact]:
    """Yield the newest target of a toolkit whose code runs on a newer GPU of the same major number.

    Also its digits, as nvcc writes them. Code for another target does not run on boards.
    """
    gpu = facts.capability(capability)
    if toolkit is None or gpu is None:
        return
    older: list[str] = []
    for target in toolkit.capabilities:
        is_other = is_plain_target(target) and target != capability
        if is_other and code_runs(facts, ArchTarget(target), gpu):
            older.append(target)
    if older:
        yield _computed(situation, "older_target", older[-1], "cuda")
        yield _computed(situation, "older_digits", older[-1].replace(".", ""), "cuda")


def _c_library_facts(facts: Facts, situation: Situation) -> Iterator[Fact]:
    """Yield whether the toolkit's headers fit those of the C library, and the first that do."""
    glibc = situation.value("glibc")
    toolkit = _toolkit(facts, situation.value("cuda"))
    if glibc is None:
        # A toolkit that refuses the C library is mended by the first with another bound.
        for candidate in facts.toolkits:
            is_newer = toolkit is not None and Version(candidate.version) > Version(toolkit.version)
            if toolkit is not None and is_newer and candidate.glibc != toolkit.glibc:
                yield _computed(situation, "glibc_toolkit", candidate.version, "cuda")
                return
        return
    if toolkit is not None:
        fit = "fits" if is_within(toolkit.glibc, glibc) else "too new"
        yield _computed(situation, "glibc_fit", fit, "cuda", "glibc")
    taking = [candidate for candidate in facts.toolkits if is_within(candidate.glibc, glibc)]
    if taking:
        yield _computed(situation, "glibc_toolkit", taking[0].version, "glibc")


def _glibc_torch(facts: Facts, situation: Situation) -> Iterator[Fact]:
    """Yield the newest torch whose wheels need a glibc older than the one that is missing here."""
    needed = situation.value("needed_glibc")
    if needed is None:
        return
    for release in reversed(facts.releases.get(_TORCH, ())):
        built_with = release.upstream.glibc
        if built_with and Version(built_with) < Version(needed):
            yield _computed(situation, "torch_for_glibc", release.version, "needed_glibc")
            return


def _conda_sysroot(_facts: Facts, situation: Situation) -> Iterator[Fact]:
    """Yield conda-forge's package with the oldest C library that has what a library needs."""
    needed = situation.value("needed_glibc")
    if needed is None:
        return
    arch = "aarch64" if situation.value("arch") == "aarch64" else "64"
    for version in _CONDA_SYSROOTS:
        if Version(version) >= Version(needed):
            package = f"sysroot_linux-{arch}={version}"
            yield _computed(situation, "conda_sysroot", package, "needed_glibc")
            return


def _cudnn_torch(facts: Facts, situation: Situation) -> Iterator[Fact]:
    """Yield the newest torch whose wheels have cuDNN of the major version that is missing here."""
    major = situation.value("cudnn_major")
    if major is None:
        return
    for release in reversed(facts.releases.get(_TORCH, ())):
        cudas: list[str] = []
        for cuda, official in release.cuda.official.items():
            if official.cudnn and official.cudnn.split(".")[0] == major:
                cudas.append(cuda)
        if cudas:
            cuda = release.cuda.pypi if release.cuda.pypi in cudas else cudas[-1]
            yield _computed(situation, "torch_for_cudnn", release.version, "cudnn_major")
            yield _computed(situation, "index_for_cudnn", cuda_label(cuda), "cudnn_major")
            return


def _compiler_facts(facts: Facts, situation: Situation) -> Iterator[Fact]:
    """Yield how the host compiler fits nvcc, torch and torch's CUDA, and the oldest toolkit for it."""
    gcc = situation.value("gcc")
    if gcc is None:
        return
    cuda = situation.value("cuda")
    toolkit = _toolkit(facts, cuda)
    torch = _plain_version(situation.value("torch"))
    yield _computed(situation, "host_gcc", f"gcc {gcc}", "gcc")
    for candidate in facts.toolkits:
        if _bounds_fit(gcc, [candidate.gcc]) == "fits":
            yield _computed(situation, "toolkit_for_gcc", candidate.version, "gcc")
            break
    bounds = torch_gcc_bounds(facts, torch, cuda)
    if toolkit is not None:
        fit = _bounds_fit(gcc, [toolkit.gcc, *bounds])
        yield _computed(situation, "gcc_for_cuda", fit, "gcc", "cuda")
    if torch:
        yield _computed(situation, "gcc_for_torch", _bounds_fit(gcc, bounds), "gcc", "torch")
    torch_toolkit = _toolkit(facts, situation.value("torch_cuda"))
    if torch_toolkit is not None:
        fit = _bounds_fit(gcc, [torch_toolkit.gcc])
        yield _computed(situation, "gcc_for_torch_cuda", fit, "gcc", "torch_cuda")


def _gcc_to_take(facts: Facts, situation: Situation) -> Iterator[Fact]:
    """Yield the newest gcc that nvcc takes, and the gcc to take, with its commands."""
    toolkit = _toolkit(facts, situation.value("cuda"))
    if toolkit is None:
        # Which nvcc runs is not known: it should be that of torch's CUDA.
        toolkit = _toolkit(facts, situation.value("torch_cuda"))
    torch = _plain_version(situation.value("torch"))
    limit = situation.value("gcc_limit")
    majors = fitting_majors(facts, toolkit, torch)
    toolkit_majors = fitting_majors(facts, toolkit, None)
    if limit:
        majors = [major for major in majors if major <= int(limit)]
        toolkit_majors = [int(limit)]
    if toolkit is None and torch is None and not limit:
        # No rule puts a bound on it: one that most toolkits take is the likeliest to do.
        majors = widely_taken_majors(facts)
    if limit and toolkit is None:
        yield from _toolkits_by_limit(facts, situation, int(limit))
    if toolkit_majors and (toolkit is not None or limit):
        basis = "gcc_limit" if limit else "cuda"
        yield _computed(situation, "newest_gcc", str(toolkit_majors[0]), basis)
    yield from _gcc_facts(situation, "", majors)


def _older_gcc(facts: Facts, situation: Situation) -> Iterator[Fact]:
    """Yield a gcc older than the one that nvcc refuses: what its limit says, or what is known."""
    gcc = situation.value("gcc")
    limit = situation.value("gcc_limit")
    if gcc is None and limit is None:
        return
    toolkit = _toolkit(facts, situation.value("cuda"))
    torch = _plain_version(situation.value("torch"))
    majors = fitting_majors(facts, toolkit, torch)
    if limit:
        majors = [major for major in majors if major <= int(limit)]
    if gcc:
        # Within one major version a toolkit may take the first releases only: 11.5 takes 11.1.
        majors = [major for major in majors if major < int(gcc.split(".")[0])]
    yield from _gcc_facts(situation, "older_", majors)


def _other_gcc(facts: Facts, situation: Situation) -> Iterator[Fact]:
    """Yield a gcc other than the one that is here, in place of one that crashes."""
    gcc = situation.value("gcc")
    if gcc is None:
        return
    toolkit = _toolkit(facts, situation.value("cuda"))
    torch = _plain_version(situation.value("torch"))
    majors = fitting_majors(facts, toolkit, torch)
    if toolkit is None and torch is None:
        majors = widely_taken_majors(facts)
    present_major = int(gcc.split(".")[0])
    others = [major for major in majors if major != present_major]
    yield from _gcc_facts(situation, "other_", others)


def _gcc_facts(situation: Situation, prefix: str, majors: Sequence[int]) -> Iterator[Fact]:
    """Yield the facts of the gcc to take of some major versions; their names begin with a prefix."""
    choice = choose_gcc(
        majors,
        parse_distribution(situation.value("distribution")),
        conda=situation.value("conda") is not None,
    )
    if choice is None:
        return
    basis = ("gcc_limit", "gcc", "cuda", "torch", "distribution")
    number = f"{prefix}gcc" if prefix else "good_gcc"
    yield _computed(situation, number, str(choice.major), *basis)
    yield _computed(situation, f"{prefix}gcc_install", choice.install, *basis)
    yield _computed(situation, f"{prefix}gcc_exports", choice.exports, *basis)


def _toolkits_by_limit(facts: Facts, situation: Situation, limit: int) -> Iterator[Fact]:
    """Yield which toolkits nvcc may belong to that takes no gcc newer than a major version."""
    limited: list[Toolkit] = []
    for toolkit in facts.toolkits:
        if toolkit.gcc and fitting_majors(facts, toolkit, None)[0] == limit:
            limited.append(toolkit)
    if limited:
        toolkits = f"CUDA {format_toolkit_range(limited)}"
        yield _computed(situation, "the_cuda", toolkits, "gcc_limit")
        yield _computed(situation, "of_cuda", f"of {toolkits}", "gcc_limit")


def _bounds_fit(version: str, bounds: Iterable[SpecifierSet]) -> str:
    """Return "fits", "too new" or "too old" of a compiler by the bounds that others put on it."""
    specifiers = [bound for bound in bounds if bound]
    text = _plain_version(version) or version
    major = int(text.split(".")[0])
    if "." not in text and all(takes_major(bound, major) for bound in specifiers):
        return "fits"
    if all(is_within(bound, text) for bound in specifiers):
        return "fits"
    for older_major in range(MAJORS.start, major):
        if any(takes_major(bound, older_major) for bound in specifiers):
            return "too new"
    return "too old"


def _family_facts(situation: Situation) -> Iterator[Fact]:
    """Yield the manager of system packages that the machine has, "apt", and NVIDIA's repository."""
    managers = distributions.usual_managers(parse_distribution(situation.value("distribution")))
    if managers:
        manager = "dnf" if managers[0] == "yum" else managers[0]
        yield _computed(situation, "manager", manager, "distribution")
        name, _, version = (situation.value("distribution") or "").partition(" ")
        if version:
            # NVIDIA's repositories are called so: "ubuntu2204", "debian12", "rhel9".
            repository = f"{name}{version.replace('.', '')}"
            yield _computed(situation, "nvidia_repository", repository, "distribution")
    elif situation.value("system") == "macos":
        yield _computed(situation, "manager", "brew", "system")


def _driver_facts(facts: Facts, situation: Situation) -> Iterator[Fact]:
    """Yield whether the driver runs what torch's toolkit makes, and the newest that it runs."""
    driver = situation.value("driver")
    if driver is None or not is_version(driver):
        return
    system = situation.value("system")
    torch_toolkit = _toolkit(facts, situation.value("torch_cuda"))
    if torch_toolkit is not None:
        bound = torch_toolkit.driver_windows if system == "windows" else torch_toolkit.driver
        fit = "too old" if is_known_older(driver, bound) else "fits"
        yield _computed(situation, "driver_fit", fit, "driver", "torch_cuda")
        if bound:
            yield _computed(situation, "oldest_driver", bound, "torch_cuda")
    runnable = [toolkit for toolkit in facts.toolkits if _runs(toolkit, driver, system)]
    if runnable:
        newest = runnable[-1].version
        yield _computed(situation, "driver_cuda", newest, "driver")
        yield _computed(situation, "driver_index", cuda_label(newest), "driver")


def _runs(toolkit: Toolkit, driver: str, system: str | None) -> bool:
    """Tell whether a driver is known to run a toolkit's code."""
    bound = toolkit.driver_windows if system == "windows" else toolkit.driver
    return bound is not None and not is_known_older(driver, bound)


def _python_facts(facts: Facts, situation: Situation) -> Iterator[Fact]:
    """Yield whether torch's release goes with the Python, and which Pythons and releases would."""
    python = situation.value("python")
    release = torch_release(facts, situation.value("torch"))
    if release is not None:
        pythons = release.pythons
        yield _computed(situation, "torch_pythons", f"{pythons[0]} to {pythons[-1]}", "torch")
        if python:
            numbers = [Version(name.rstrip("t")) for name in pythons]
            fit = "fits"
            if Version(python) > max(numbers):
                fit = "too new"
            elif Version(python) < min(numbers):
                fit = "too old"
            yield _computed(situation, "python_for_torch", fit, "python", "torch")
            if fit == "too new":
                yield _computed(situation, "good_python", str(max(numbers)), "torch")
            if fit == "too old":
                yield _computed(situation, "oldest_good_python", str(min(numbers)), "torch")
    if python:
        serving = [
            candidate for candidate in facts.releases.get(_TORCH, ()) if python in candidate.pythons
        ]
        if serving:
            yield _computed(situation, "first_torch_for_python", serving[0].version, "python")
            yield _computed(situation, "last_torch_for_python", serving[-1].version, "python")


def _torch_rules(facts: Facts, torch: str | None) -> Iterator[Rule]:
    """Yield the rules of torch that are about some releases, this one among them."""
    if torch is None or _TORCH not in facts.packages:
        return
    for rule in facts.packages[_TORCH].rules:
        if rule.when.release and is_within(rule.when.release, torch):
            yield rule


def _standard_facts(facts: Facts, situation: Situation) -> Iterator[Fact]:
    """Yield the C++ standard that torch's headers need, and whether the command has it."""
    needed = 0
    for rule in _torch_rules(facts, _plain_version(situation.value("torch"))):
        if rule.cxx is not None:
            needed = rule.cxx
    name = situation.value("name")
    if name in _STANDARDS:
        # The message itself says which standard the code is written in.
        needed = max(needed, int(name))
    if not needed:
        return
    yield _computed(situation, "standard_needed", str(needed), "torch")
    year = _year_of_standard(situation.value("cxx_standard") or "")
    if year is not None:
        fit = "too low" if year < 2000 + needed else "fits"
        yield _computed(situation, "standard_fit", fit, "cxx_standard", "torch")


def _year_of_standard(name: str) -> int | None:
    """Return the year of the C++ standard that a flag names: 2017 for "17" and "1z", 1998 for "98".

    None for a name that is no standard's, such as "1x".
    """
    number = _DRAFT_STANDARDS.get(name, name)
    if not number.isdecimal():
        return None
    century = 1900 if int(number) >= _OLDEST_STANDARD else 2000
    return century + int(number)


def _setuptools_facts(facts: Facts, situation: Situation) -> Iterator[Fact]:
    """Yield the bound of setuptools that the rules put on a build of torch."""
    for rule in _torch_rules(facts, _plain_version(situation.value("torch"))):
        for requirement in rule.requires:
            if requirement.startswith("setuptools<"):
                yield _computed(situation, "setuptools_pin", requirement, "torch")


def _edit_facts(situation: Situation) -> Iterator[Fact]:
    """Yield the command that edits old code, if the line names what an edit replaces."""
    torch = _plain_version(situation.value("torch"))
    cuda = _plain_version(situation.value("cuda"))
    system = situation.value("system")
    command = edit_command(situation.value("name") or "", torch, cuda, system)
    if command:
        yield _computed(situation, "edit", command, "torch", "cuda")


def _came_facts(situation: Situation) -> Iterator[Fact]:
    """Yield whether the torch has what came in a release of it.

    One that nobody names is newer than 1.0, which nearly all are.
    """
    came_in = situation.value("came_in")
    if came_in is None:
        return
    torch = _plain_version(situation.value("torch"))
    if torch is None:
        if Version(came_in) <= _OLDEST_TORCH:
            yield _computed(situation, "came_fit", "yes", "came_in")
        return
    fit = "yes" if Version(torch) >= Version(came_in) else "no"
    yield _computed(situation, "came_fit", fit, "came_in", "torch")


def distribution_nvcc(situation: Situation) -> Fact | None:
    """Return the toolkit of the distribution's own nvcc, if the log shows that this one runs.

    None if it does not, or if the version that the distribution has is not recorded.
    """
    path = situation.value("nvcc_path")
    distribution = parse_distribution(situation.value("distribution"))
    if path != _DISTRIBUTION_NVCC or distribution is None:
        return None
    release = distributions.find_recorded_release(distribution)
    if release is None or not release.nvcc:
        return None
    return _computed(situation, "cuda", release.nvcc, "nvcc_path", "distribution")


_RULES = (
    _toolkit_facts,
    _named_cuda_facts,
    _capability_facts,
    _c_library_facts,
    _compiler_facts,
    _gcc_to_take,
    _older_gcc,
    _other_gcc,
    _driver_facts,
    _python_facts,
    _standard_facts,
    _setuptools_facts,
    _glibc_torch,
    _cudnn_torch,
    _conda_sysroot,
    request_facts,
    index_facts,
    torch_facts,
    project_facts,
)
