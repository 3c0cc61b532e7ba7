"""Check the CUDA toolkit of a build, its parts and its libraries."""

from collections.abc import Iterator, Sequence

from packaging.version import Version

from torchmill.config import distributions
from torchmill.config.arch_list import listed_capabilities, parse_targets
from torchmill.config.facts import Facts
from torchmill.config.gpu_names import known_capabilities
from torchmill.config.served_gpus import unserved_capabilities, without_cudnn
from torchmill.config.toolkit import Toolkit, ToolkitPart
from torchmill.core.package_data import read_table_beside
from torchmill.core.units import format_bytes
from torchmill.host import provisioned
from torchmill.host.cuda_toolkits import format_part_names
from torchmill.host.host import Host
from torchmill.plan import link_overflow, system_packages
from torchmill.plan.cuda_libraries import official_version, used_cudnn
from torchmill.plan.cuda_toolkit import usable_toolkits
from torchmill.plan.doctor import finding
from torchmill.plan.doctor.container_cures import container_cures, glibc_cure
from torchmill.plan.doctor.finding import CheckContext, Finding, Verdict
from torchmill.plan.doctor.package_cures import board_package_cure, host_manager, package_cure
from torchmill.plan.drivers import is_driven
from torchmill.plan.providers import has_other_libc, has_own_cuda, libc_name
from torchmill.plan.system_packages import PACKAGES

_NCCL_IS_CLONED_SINCE = Version("2.7.0")  # before, it is a submodule: pytorch#146073
_NAMED_AFTER_CUDA = 9  # the first major version whose packages name the toolkit's too
_INSTALLERS = "https://developer.nvidia.com/cuda-toolkit-archive"  # of all toolkits; they need no package manager
_BOARDS_ARCHIVE = "NVIDIA's archive for this board's JetPack"
_LIBRARIES = read_table_beside(__file__, "libraries.toml")
NEEDED_PARTS = "all that torch's build uses"


def check_cuda(context: CheckContext) -> Iterator[Finding]:
    """Yield the findings on the toolkit, and on its libraries where the package uses them itself."""
    if context.toolkit is None:
        return
    yield _toolkit(context, context.toolkit.version)
    yield from _capabilities(context, context.toolkit)
    if context.package.after is not None:
        return
    if not context.is_off("USE_CUDNN"):
        code = [*check_cudnn_code(context)]
        if not any(one.verdict == "failure" for one in code):
            yield (
                _provisioned(context, "cudnn")
                if "cudnn" in context.plan.cuda.libraries
                else _cudnn(context)
            )
        yield from code
    if not context.is_off("USE_NCCL"):
        yield (
            _provisioned(context, "nccl")
            if "nccl" in context.plan.cuda.libraries
            else _nccl(context)
        )
    for name in ("cusparselt", "nvshmem"):
        if name in context.plan.cuda.libraries and not context.is_off(f"USE_{name.upper()}"):
            yield _provisioned(context, name)
    if theirs := official_version(context.constraints, "magma"):
        yield _magma(context, theirs)
    yield from _link(context, context.toolkit.version)


def _toolkit(context: CheckContext, cuda: str) -> Finding:
    host, subject, own = context.host, "CUDA toolkit", context.build.cuda
    needed = cuda if cuda == own else f"{cuda}, asked for in place of {own}"
    if cuda in host.toolkits.homes:
        return Finding(subject, f"{cuda} in {host.toolkits.homes[cuda]}", needed, "ok")
    there = ", ".join(host.toolkits.homes)
    found = f"CUDA {there}" if there else finding.absence_text(host)
    verdict = "failure" if there else finding.absence_verdict(host)
    driven = [
        one
        for one in host.toolkits.homes
        if (kit := context.facts.toolkit(one)) and is_driven(kit, host)
    ]
    newer = usable_toolkits(context.facts, context.cell, driven)
    because = (
        f"on request {newer[-1]} compiles it: {context.session} -- --toolkit {newer[-1]}"
        if newer
        else ""
    )
    cure = finding.toolkit_command(context, provisioned.TOOLKIT, cuda)
    if cure is None:
        cure = _packaged_toolkit(context, cuda)
        because = because or "one that is installed elsewhere is found through CUDA_HOME"
        if has_other_libc(host):
            because = (
                f"NVIDIA makes CUDA for glibc alone, and the C library here is {libc_name(host)}"
            )
    missing = Finding(subject, found, needed, verdict, because=because)
    return finding.with_cures(missing, [cure, *container_cures(context)])


def _packaged_toolkit(context: CheckContext, cuda: str) -> str:
    """Return how to install a toolkit that `invoke toolkit` does not bring."""
    host = context.host
    name, board = (
        f"cuda-toolkit-{cuda.replace('.', '-')}",
        distributions.find_board(host.platform.distribution),
    )
    if has_other_libc(host):
        return glibc_cure(context)
    if board is not None and board.cuda == cuda:
        return (
            board_package_cure(host, board.toolkit)
            if board.toolkit
            else f"look for it as {name} in {_BOARDS_ARCHIVE}"
        )
    if board is not None:
        return f"build for CUDA {board.cuda}, which is that of this board's JetPack"
    place = system_packages.describe_place(host_manager(host), host.platform.distribution)
    return f"look for it as {name} in NVIDIA's archive for {place}, or take the installer of {_INSTALLERS}"


def _capabilities(context: CheckContext, toolkit: Toolkit) -> Iterator[Finding]:
    """Yield a finding where later toolkits make no code for something in the list any more."""
    names = [one.name for one in parse_targets(context.facts, context.plan.arch_list)]
    if warned := [one for one in names if one in toolkit.deprecated]:
        because = (
            f"CUDA {toolkit.version} warns about {', '.join(warned)}, which a later toolkit drops"
        )
        needed = f"what CUDA {toolkit.version} makes code for"
        yield Finding("compute capabilities", context.plan.arch_list, needed, "ok", because=because)


def _provisioned(context: CheckContext, name: str) -> Finding:
    """Return the finding on a library that the build takes from those which `invoke toolkit` brings."""
    version, host, cuda = (
        context.plan.cuda.libraries[name],
        context.host,
        str(context.plan.cuda.toolkit),
    )
    home = host.toolkits.provisioned.get(context.plan.cuda.provisioned[name])
    called, without = _LIBRARIES[name]["called"], _LIBRARIES[name]["without"]
    if home is None:
        of_debian = (
            context.source is not None and context.source.provider == "debian"
        )  # has no source of NCCL
        needed = name == "nccl" and (of_debian or _is_cloned(context))
        because = "" if needed else without.format(build=f"{context.session} -- --set")
        cure = finding.toolkit_command(context, name, version) or _build_without(context, name)
        seen = context.library(name)
        found = (
            f"only {seen or 'one of an unknown version'}"
            if seen is not None
            else finding.absence_text(host)
        )
        return Finding(
            called,
            found,
            version,
            finding.absence_verdict(host),
            cure,
            because if host.complete else "",
        )
    inside = host.toolkits.libraries.get(f"{name}@{cuda}")
    if inside is not None and not version.startswith(inside or "-"):
        because = (
            f"the toolkit has {inside or 'another one'} too, whose headers may be read in its place"
        )
        cure = f"take {name}*.h out of {host.toolkits.homes.get(cuda, 'the toolkit')}/include"
        return Finding(called, f"{version} in {home}", version, "warning", cure, because)
    return Finding(called, f"{version} in {home}", version, "ok")


def _build_without(context: CheckContext, name: str) -> str:
    """Return the command that builds without a library which nobody has for a board; "" for other machines.

    What boards lack serves several GPUs, or is for servers: https://docs.nvidia.com/jetson/ lists what JetPack has.
    """
    return f"{context.session} -- --set USE_{name.upper()}=0" if has_own_cuda(context.host) else ""


def _cudnn(context: CheckContext) -> Finding:
    subject, needs = "cuDNN", context.needs("cudnn")
    theirs = official_version(context.constraints, "cudnn")
    spoken = [str(needs), f"the official build has {theirs}" if theirs else ""]
    needed = ", ".join(filter(None, spoken)) or "any"
    if pinned := context.requirement("nvidia-cudnn"):
        return Finding(subject, f"{pinned} from PyPI", needed, "ok")
    version = context.library("cudnn")
    if version is None:
        return _no_cudnn(context, needed, theirs)
    cure = _install_cudnn(context, theirs)
    if version and not needs.allows(version):
        return Finding(subject, version, needed, "failure", cure, "; ".join(needs.reasons))
    if version and theirs and not needs.bounds and Version(version).major != Version(theirs).major:
        because = (
            "nobody is known to have built this release with a major version other than its own"
        )
        return Finding(subject, version, needed, "warning", cure, because)
    return Finding(subject, version or "there, of an unknown version", needed, "ok")


def check_cudnn_code(context: CheckContext) -> Iterator[Finding]:
    """Yield a finding where the cuDNN of the build has no code for GPUs of the list: a failure, if for none of them."""
    version, listed = used_cudnn(context.plan, context.host), context.plan.arch_list
    gpus = listed_capabilities(context.facts, listed)
    if version and (left := without_cudnn(version, gpus)):
        some = len(left) < len(gpus)
        because = "on these GPUs `torch.backends.cudnn.enabled = False` is needed; this builds without cuDNN for all"
        cure = f"{context.session} -- --set USE_CUDNN=0"
        found = f"none for {', '.join(left)} in {version}"
        yield Finding(
            "cuDNN's code", found, listed, "warning" if some else "failure", cure, because
        )


def _no_cudnn(context: CheckContext, needed: str, theirs: str | None) -> Finding:
    host = context.host
    places = (
        place.removeprefix("cudnn@")
        for place in host.toolkits.libraries
        if place.startswith("cudnn@")
    )
    folder = next(
        (place for place in places if {"/", "\\"} & set(place)), None
    )  # that only the user's shell knows of
    if folder is not None:
        because = "a build does not take such variables from the shell: its options name the folder"
        cure = f"{context.session} -- --set CUDNN_ROOT={folder}"
        return Finding("cuDNN", f"only in {folder}", needed, "failure", cure, because)
    because = f"without it convolutions are slow; `{context.session} -- --set USE_CUDNN=0` is such a build"
    return finding.absence_finding(host, "cuDNN", needed, _install_cudnn(context, theirs), because)


def _install_cudnn(context: CheckContext, theirs: str | None) -> str:
    """Return how to install a cuDNN that the build finds in the system or in its toolkit."""
    host, cuda = context.host, Version(context.plan.cuda.toolkit or "0")
    board, by_hand = (
        distributions.find_board(host.platform.distribution),
        "unpack NVIDIA's archive of it into the toolkit's folder",
    )
    if board is not None and Version(board.cuda) == cuda:
        return f"look for it as {board.cudnn} in {_BOARDS_ARCHIVE}"
    name = PACKAGES["cudnn"].get(system_packages.names_of(host_manager(host)))
    if name is None or theirs is None:
        return f"install cuDNN with its headers: {by_hand}"
    major = Version(theirs).major
    if host.packages.manager == "conda":
        return package_cure(host, [name.format(major=major)])
    suffix = f"-cuda-{cuda.major}" if major >= _NAMED_AFTER_CUDA else ""
    package, place = (
        name.format(major=major) + suffix,
        host.platform.distribution or host_manager(host),
    )
    return f"look for it as {package} in NVIDIA's archive for {place}, or {by_hand}"


def _nccl(context: CheckContext) -> Finding:
    needs, host = context.needs("nccl"), context.host
    if "USE_SYSTEM_NCCL" not in context.plan.variables or context.is_off("USE_SYSTEM_NCCL"):
        if _is_cloned(context):
            because = "the build would clone it, but has no network unless `-- --network` allows it"
            cure = f"{context.session} -- --set USE_NCCL=0"
            return Finding("NCCL", "not in the release's source", "any", "warning", cure, because)
        return Finding("NCCL", "built with the release's own source", "any", "ok")
    version, needed = context.library("nccl"), str(needs) or "any"
    cure = f"{context.session} -- --set USE_SYSTEM_NCCL=0"
    if version is None:
        return finding.absence_finding(host, "NCCL", needed, cure)
    if version and not needs.allows(version):
        return Finding("NCCL", version, needed, "failure", cure, "; ".join(needs.reasons))
    return Finding("NCCL", version or "there, of an unknown version", needed, "ok")


def _is_cloned(context: CheckContext) -> bool:
    """Tell whether NCCL is not in the release's source, and its build clones it."""
    source = context.source
    if source is not None and source.provider == "git":
        return not any(path.startswith("third_party/nccl") for path in source.submodules)
    return Version(context.cell.release.torch_version) >= _NCCL_IS_CLONED_SINCE


def _magma(context: CheckContext, theirs: str) -> Finding:
    version, needed = context.library("magma"), f"the official build has {theirs}"
    off, home = (
        context.is_off("USE_MAGMA"),
        context.host.toolkits.provisioned.get(context.plan.cuda.provisioned.get("magma", "")),
    )
    if home is not None:
        return Finding("MAGMA", f"{context.plan.cuda.libraries['magma']} in {home}", needed, "ok")
    if version is not None and not off:
        return Finding("MAGMA", version or "there, of an unknown version", needed, "ok")
    verdict: Verdict = "warning" if context.host.complete or off else "unknown"
    found = "left out" if off else finding.absence_text(context.host)
    if verdict == "unknown":
        return Finding("MAGMA", found, needed, verdict)
    why = ["without it, parts of torch.linalg do not run on the GPU"]
    why += [
        f"the kept {one.version} has code for {one.code} and none for {', '.join(missed)}"
        for one in provisioned.provisioned_magma(
            context.host.toolkits.provisioned, str(context.plan.cuda.toolkit)
        )
        if (missed := unserved_capabilities(context.facts, one.code, context.plan.arch_list))
    ]
    rules = (one for one in context.package.rules if "magma" in (one.when.lacking or ()))
    by_rule = any(one.reason in context.plan.reasons for one in rules)
    cure = "" if off and not by_rule else finding.magma_command(context, theirs) or ""
    return Finding("MAGMA", found, needed, verdict, cure, "; ".join(why))


def _link(context: CheckContext, cuda: str) -> Iterator[Finding]:
    """Yield a finding where the device code may be more than the linker can place."""
    gpus = known_capabilities(context.facts, context.host.gpus.devices)
    risk = link_overflow.predict_overflow(
        context.facts, context.cell.release, cuda, context.plan.variables, gpus
    )
    if risk is None or risk.level == "none":
        return
    verdict: Verdict = "failure" if risk.level == "likely" else "warning"
    because = 'beyond it the link ends with "relocation truncated to fit"'
    cure = f"build with {', or '.join(risk.cures)}"
    found, needed = risk.expected.in_bytes, f"at most {format_bytes(risk.limit)}"
    yield Finding("libtorch_cuda", found, needed, verdict, cure, because)


def check_toolkit_parts(context: CheckContext) -> Iterator[Finding]:
    """Yield a finding where the toolkit of the build lacks parts."""
    cuda, host = context.plan.cuda.toolkit or "", context.host
    lacks = lacking_parts(context.facts, host, cuda)
    if not lacks:
        return
    cure = finding.completion_command(context, cuda, lacks)
    found = f"no {format_part_names(lacks)} in {host.toolkits.homes[cuda]}"
    version = context.cell.release.torch_version
    vital = any(not part.without or (part.vital and part.vital.contains(version)) for part in lacks)
    because = "; ".join(part.without for part in lacks if part.without)
    yield Finding(
        "parts of CUDA", found, NEEDED_PARTS, "failure" if vital else "warning", cure, because
    )


def lacking_parts(facts: Facts, host: Host, version: str) -> Sequence[ToolkitPart]:
    """Return the parts that a host's toolkit of some version is known to lack."""
    lacks = (
        host.toolkits.lacking_parts.get(version, "").split(", ")
        if version in host.toolkits.homes
        else ()
    )
    return [part for part in facts.toolkit_parts if part.name in lacks]
