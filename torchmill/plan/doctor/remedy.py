"""The `invoke toolkit` commands that provide what a build lacks."""

from collections.abc import Sequence
from pathlib import Path

from packaging.version import Version

from torchmill.config.arch_list import unserved_capabilities
from torchmill.config.facts_model import ToolkitPart
from torchmill.config.facts_reader import PROVIDERS
from torchmill.fetch.toolkit.request import (
    MAGMA,
    ProviderRefusal,
    ToolkitRequest,
    candidate_sources,
    parts_supply,
)
from torchmill.host.cuda_toolkits import is_spread_in_system
from torchmill.host.provisioned import COMPILER, TOOLKIT
from torchmill.plan.doctor.finding import CheckContext


def toolkit_command(context: CheckContext, version: str) -> str | None:
    """Return the command that brings a toolkit; None where nobody is known to have it for the machine."""
    wanted = ToolkitRequest(TOOLKIT, version, None, context.build.arch)
    return f"invoke toolkit --cuda {version}" if _is_available(context, wanted) else None


def completion_command(context: CheckContext, version: str, lacks: Sequence[ToolkitPart]) -> str:
    """Return what to do where a toolkit lacks parts: the command that completes it, or brings another."""
    home, sources = Path(context.host.toolkits[version]), context.facts.toolkit_sources
    packages, left = parts_supply(version, context.build.arch, lacks, sources)
    if packages and all(part.without for part in left) and not is_spread_in_system(home):
        return f"invoke toolkit --complete {version}"
    return toolkit_command(context, version) or f"install what is lacking into {home}"


def library_command(context: CheckContext, name: str, version: str) -> str | None:
    """Return the command that brings a library for the toolkit of the build; None as above."""
    major = str(Version(context.plan.toolkit or "0").major)
    wanted = ToolkitRequest(name, version, major, context.build.arch)
    command = f"invoke toolkit --library {name}-cu{major}={version}"
    return command if _is_available(context, wanted) else None


def magma_command(context: CheckContext, theirs: str) -> str | None:
    """Return the command that brings a MAGMA for the toolkit and the compute capabilities of the build.

    `theirs` is the version of the official build. None where MAGMA is kept on no such machine.
    """
    cuda = context.plan.toolkit
    if context.host.system != "linux" or cuda is None:
        return None
    listed = context.plan.set.get("TORCH_CUDA_ARCH_LIST", "")
    serving = [
        one
        for one in context.facts.toolkit_sources
        if (one.kind, one.cuda) == (MAGMA, cuda)
        and context.build.arch in one.arches
        and not unserved_capabilities(context.facts, ";".join(one.capabilities), listed)
    ]
    command = f"invoke toolkit --library magma-cu{cuda.replace('.', '')}"
    if serving:
        return f"{command} --arch-list '{listed}'"
    return f"{command}={theirs} --from FOLDER, where one lies that was compiled for {listed}"


def compiler_command(context: CheckContext, name: str) -> str | None:
    """Return the command that brings a compiler, "gcc-11"; None as above."""
    wanted = ToolkitRequest(COMPILER, name, None, context.build.arch)
    return f"invoke toolkit --compiler {name}" if _is_available(context, wanted) else None


def _is_available(context: CheckContext, wanted: ToolkitRequest) -> bool:
    if context.host.system != "linux":
        return False
    sources = context.facts.toolkit_sources
    return any(not isinstance(candidate_sources(wanted, one, sources), ProviderRefusal) for one in PROVIDERS)
