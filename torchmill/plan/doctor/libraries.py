"""Check the libraries of CUDA that a build links: cuDNN, NCCL, cuSPARSELt, NVSHMEM and MAGMA.

A library is "provisioned" if the plan takes it from torchmill's cache, into which `invoke toolkit`
fetches it. Others are found in the toolkit or in the system.
"""

from collections.abc import Iterator

from packaging.version import Version

from torchmill.config import distributions
from torchmill.config.arch_list import listed_capabilities
from torchmill.config.served_gpus import unserved_by_cudnn, unserved_capabilities
from torchmill.core.package_data import read_table_beside
from torchmill.host.provisioned import provisioned_magma
from torchmill.plan import system_packages
from torchmill.plan.cuda_libraries import official_version, used_cudnn
from torchmill.plan.doctor.finding import (
    CheckContext,
    Finding,
    absence_finding,
    absence_text,
    absence_verdict,
    magma_command,
    toolkit_command,
)
from torchmill.plan.doctor.package_cures import host_manager, package_cure
from torchmill.plan.providers import has_own_cuda
from torchmill.plan.rules import Constraint
from torchmill.plan.system_packages import PACKAGES

# Up to torch 2.6, NCCL is a submodule: https://github.com/pytorch/pytorch/pull/146073
_NCCL_IS_CLONED_SINCE = Version("2.7.0")
# From this major version on, the names of cuDNN's packages end with the version of the toolkit.
_CUDNN_NAMED_AFTER_CUDA = 9
BOARD_ARCHIVE = "NVIDIA's archive for this board's JetPack"
_TABLE = read_table_beside(__file__, "libraries.toml")  # by library: "cudnn"
_UNKNOWN_VERSION = "there, of an unknown version"


def check_libraries(context: CheckContext) -> Iterator[Finding]:
    """Yield the findings on the libraries of a build, which has to be one of torch with CUDA."""
    provisioned = context.plan.cuda.libraries
    if not context.is_off("USE_CUDNN"):
        code_findings = list(check_cudnn_code(context))
        # A cuDNN that serves no GPU of the list is not worth installing.
        is_useful = all(finding.verdict != "failure" for finding in code_findings)
        if is_useful and "cudnn" in provisioned:
            yield _provisioned_finding(context, "cudnn")
        elif is_useful:
            yield _cudnn_finding(context)
        yield from code_findings
    if not context.is_off("USE_NCCL"):
        if "nccl" in provisioned:
            yield _provisioned_finding(context, "nccl")
        else:
            yield _nccl_finding(context)
    for name in ("cusparselt", "nvshmem"):
        if name in provisioned and not context.is_off(f"USE_{name.upper()}"):
            yield _provisioned_finding(context, name)
    official = official_version(context.constraints, "magma")
    if official:
        yield _magma_finding(context, official)


def _provisioned_finding(context: CheckContext, name: str) -> Finding:
    """Return the finding on a library that the build takes from torchmill's cache."""
    host = context.host
    version = context.plan.cuda.libraries[name]
    subject = _TABLE[name]["called"]
    home = host.toolkits.provisioned.get(context.plan.cuda.provisioned[name])
    if home is None:
        return _absent_library(context, name, subject, version)
    state = f"{version} in {home}"
    cuda = str(context.plan.cuda.toolkit)
    # The version that lies in the toolkit itself; "" if it does not tell, None if there is none.
    toolkit_version = host.toolkits.libraries.get(f"{name}@{cuda}")
    if toolkit_version is None:
        return Finding(subject, state, version, "ok")
    if toolkit_version and version.startswith(toolkit_version):
        return Finding(subject, state, version, "ok")
    other = toolkit_version or "another one"
    folder = host.toolkits.homes.get(cuda, "the toolkit")
    cure = f"take {name}*.h out of {folder}/include"
    because = f"the toolkit has {other} too, whose headers may be read in its place"
    return Finding(subject, state, version, "warning", cure=cure, because=because)


def _absent_library(context: CheckContext, name: str, subject: str, version: str) -> Finding:
    """Return the finding on a provisioned library that is not in the cache yet.

    `name` is that of its packages, "cudnn", and `subject` the name that people use, "cuDNN".
    """
    host = context.host
    state = absence_text(host)
    other_version = context.library(name)
    if other_version is not None:
        state = f"only {other_version or 'one of an unknown version'}"
    cure = toolkit_command(context, name, version)
    if cure is None and has_own_cuda(host):
        # Libraries that boards lack are for servers, or for several GPUs; those of JetPack are in
        # https://docs.nvidia.com/jetson/
        cure = f"{context.session} -- --set USE_{name.upper()}=0"
    because = ""
    # Without the cache's NCCL, a build compiles the NCCL of its source, if that has one.
    can_do_without = name != "nccl" or not _has_no_nccl_source(context)
    if host.complete and can_do_without:
        because = _TABLE[name]["without"].format(build=f"{context.session} -- --set")
    return Finding(subject, state, version, absence_verdict(host), cure=cure or "", because=because)


def _has_no_nccl_source(context: CheckContext) -> bool:
    """Tell whether the source of a build has no NCCL that it could compile.

    Debian's sources lack it, and newer releases clone it as they are built.
    """
    is_debian = context.source is not None and context.source.provider == "debian"
    return is_debian or _is_nccl_cloned(context)


def _is_nccl_cloned(context: CheckContext) -> bool:
    """Tell whether a build clones NCCL, because the release's source does not have it."""
    source = context.source
    if source is not None and source.provider == "git":
        return not any(path.startswith("third_party/nccl") for path in source.submodules)
    return Version(context.cell.release.torch_version) >= _NCCL_IS_CLONED_SINCE


def _cudnn_finding(context: CheckContext) -> Finding:
    """Return the finding on the cuDNN that a build finds in its toolkit or in the system."""
    subject = "cuDNN"
    needs = context.needs("cudnn")
    official = official_version(context.constraints, "cudnn")
    needed = _needed_cudnn(needs, official)
    requirement = context.requirement("nvidia-cudnn")
    if requirement:
        return Finding(subject, f"{requirement} from PyPI", needed, "ok")
    version = context.library("cudnn")
    if version is None:
        return _no_cudnn(context, needed, official)
    if not version:
        return Finding(subject, _UNKNOWN_VERSION, needed, "ok")
    if not needs.allows(version):
        cure = _install_cudnn(context, official)
        return Finding(
            subject, version, needed, "failure", cure=cure, because="; ".join(needs.reasons)
        )
    if official and not needs.bounds and Version(version).major != Version(official).major:
        cure = _install_cudnn(context, official)
        because = (
            "nobody is known to have built this release with a major version other than its own"
        )
        return Finding(subject, version, needed, "warning", cure=cure, because=because)
    return Finding(subject, version, needed, "ok")


def _needed_cudnn(needs: Constraint, official: str | None) -> str:
    """Return the text on the needed cuDNN: its bounds, and the version of the official build."""
    parts = [str(needs)] if str(needs) else []
    if official:
        parts.append(f"the official build has {official}")
    return ", ".join(parts) or "any"


def check_cudnn_code(context: CheckContext) -> Iterator[Finding]:
    """Yield a finding if the build's cuDNN has no code for some GPUs of the arch list.

    It is a failure if cuDNN has code for none of them, else a warning.
    """
    version = used_cudnn(context.plan, context.host)
    if not version:
        return
    listed = context.plan.arch_list
    gpus = listed_capabilities(context.facts, listed)
    unserved = unserved_by_cudnn(version, gpus)
    if unserved:
        yield Finding(
            "cuDNN's code",
            f"none for {', '.join(unserved)} in {version}",
            listed,
            "warning" if len(unserved) < len(gpus) else "failure",
            cure=f"{context.session} -- --set USE_CUDNN=0",
            because="on these GPUs `torch.backends.cudnn.enabled = False` is needed; "
            "this builds without cuDNN for all",
        )


def _no_cudnn(context: CheckContext, needed: str, official: str | None) -> Finding:
    """Return the finding on a host without a cuDNN that the build finds."""
    host = context.host
    for key in host.toolkits.libraries:
        # "cudnn@11.8" is in a toolkit. "cudnn@/opt/x" is in a folder that the user's shell names.
        folder = key.removeprefix("cudnn@")
        if folder != key and {"/", "\\"} & set(folder):
            cure = f"{context.session} -- --set CUDNN_ROOT={folder}"
            because = (
                "a build does not take such variables from the shell: its options name the folder"
            )
            return Finding(
                "cuDNN", f"only in {folder}", needed, "failure", cure=cure, because=because
            )
    because = (
        "without it convolutions are slow; "
        f"`{context.session} -- --set USE_CUDNN=0` is such a build"
    )
    return absence_finding(
        host, "cuDNN", needed, cures=_install_cudnn(context, official), because=because
    )


def _install_cudnn(context: CheckContext, official: str | None) -> str:
    """Return how to install a cuDNN that the build finds in the system or in its toolkit."""
    host = context.host
    cuda = Version(context.plan.cuda.toolkit or "0")
    board = distributions.find_jetson(host.platform.distribution)
    if board is not None and Version(board.cuda) == cuda:
        return f"look for it as {board.cudnn} in {BOARD_ARCHIVE}"
    by_hand = "unpack NVIDIA's archive of it into the toolkit's folder"
    manager = host_manager(host)
    name = PACKAGES["cudnn"].get(system_packages.naming_manager(manager))
    if name is None or official is None:
        return f"install cuDNN with its headers: {by_hand}"
    major = Version(official).major
    package = name.format(major=major)
    if host.packages.manager == "conda":
        return package_cure(host, [package])
    if major >= _CUDNN_NAMED_AFTER_CUDA:
        package += f"-cuda-{cuda.major}"
    place = host.platform.distribution or manager
    return f"look for it as {package} in NVIDIA's archive for {place}, or {by_hand}"


def _nccl_finding(context: CheckContext) -> Finding:
    """Return the finding on the NCCL of the release's source, or of the system."""
    subject = "NCCL"
    is_set = "USE_SYSTEM_NCCL" in context.plan.variables
    if not is_set or context.is_off("USE_SYSTEM_NCCL"):
        # The build compiles NCCL itself.
        if not _is_nccl_cloned(context):
            return Finding(subject, "built with the release's own source", "any", "ok")
        cure = f"{context.session} -- --set USE_NCCL=0"
        because = "the build would clone it, but has no network unless `-- --network` allows it"
        state = "not in the release's source"
        return Finding(subject, state, "any", "warning", cure=cure, because=because)
    needs = context.needs("nccl")
    needed = str(needs) or "any"
    cure = f"{context.session} -- --set USE_SYSTEM_NCCL=0"
    version = context.library("nccl")
    if version is None:
        return absence_finding(context.host, subject, needed, cures=cure)
    if version and not needs.allows(version):
        return Finding(
            subject, version, needed, "failure", cure=cure, because="; ".join(needs.reasons)
        )
    return Finding(subject, version or _UNKNOWN_VERSION, needed, "ok")


def _magma_finding(context: CheckContext, official: str) -> Finding:
    """Return the finding on MAGMA; `official` is the version of the official build."""
    subject = "MAGMA"
    needed = f"the official build has {official}"
    host = context.host
    cuda = context.plan.cuda
    home = host.toolkits.provisioned.get(cuda.provisioned.get("magma", ""))
    if home is not None:
        return Finding(subject, f"{cuda.libraries['magma']} in {home}", needed, "ok")
    is_off = context.is_off("USE_MAGMA")
    version = context.library("magma")
    if version is not None and not is_off:
        return Finding(subject, version or _UNKNOWN_VERSION, needed, "ok")
    if not host.complete and not is_off:
        return Finding(subject, absence_text(host), needed, "unknown")
    cure = ""
    # A user who turned MAGMA off needs no cure.
    if not is_off or _is_magma_off_by_rule(context):
        cure = magma_command(context, official) or ""
    clauses = ["without it, parts of torch.linalg do not run on the GPU"]
    clauses += _unfit_magma_clauses(context)
    state = "left out" if is_off else absence_text(host)
    return Finding(subject, state, needed, "warning", cure=cure, because="; ".join(clauses))


def _is_magma_off_by_rule(context: CheckContext) -> bool:
    """Tell whether MAGMA was turned off by a rule for hosts without it, as opposed to the user."""
    for rule in context.package.rules:
        if "magma" in (rule.when.absent_libraries or ()) and rule.reason in context.plan.reasons:
            return True
    return False


def _unfit_magma_clauses(context: CheckContext) -> Iterator[str]:
    """Yield a clause for each MAGMA in the cache without code for some entries of the arch list."""
    cuda = str(context.plan.cuda.toolkit)
    for magma in provisioned_magma(context.host.toolkits.provisioned, cuda):
        unserved = unserved_capabilities(context.facts, magma.code, context.plan.arch_list)
        if unserved:
            yield (
                f"the {magma.version} of the cache has code for {magma.code} "
                f"and none for {', '.join(unserved)}"
            )
