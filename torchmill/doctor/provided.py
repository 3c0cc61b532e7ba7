"""What `invoke toolkit` can bring, and the command for it."""

from collections.abc import Sequence
from pathlib import Path

from packaging.version import Version

from torchmill.capabilities.serving import unserved
from torchmill.doctor.finding import Question
from torchmill.facts.provision import PROVIDERS
from torchmill.host.kept import COMPILER, TOOLKIT
from torchmill.host.parts import is_spread
from torchmill.model import Part
from torchmill.toolkit.choosing import candidates, supply
from torchmill.toolkit.wanted import MAGMA, Lacking, Wanted


def toolkit(question: Question, version: str) -> str | None:
    """Return the command that brings a toolkit; None where nobody is known to have it for the machine."""
    wanted = Wanted(TOOLKIT, version, None, question.build.arch)
    return f"invoke toolkit --cuda {version}" if _can_be_had(question, wanted) else None


def completion(question: Question, version: str, lacks: Sequence[Part]) -> str:
    """Return what to do where a toolkit lacks parts: the command that completes it, or brings another."""
    home, sources = Path(question.host.toolkits[version]), question.facts.toolkit_sources
    packages, left = supply(version, question.build.arch, lacks, sources)
    if packages and all(part.without for part in left) and not is_spread(home):
        return f"invoke toolkit --complete {version}"
    return toolkit(question, version) or f"install what is lacking into {home}"


def library(question: Question, name: str, version: str) -> str | None:
    """Return the command that brings a library for the toolkit of the build; None as above."""
    major = str(Version(question.plan.toolkit or "0").major)
    wanted = Wanted(name, version, major, question.build.arch)
    command = f"invoke toolkit --library {name}-cu{major}={version}"
    return command if _can_be_had(question, wanted) else None


def magma(question: Question, theirs: str) -> str | None:
    """Return the command that brings a MAGMA for the toolkit and the compute capabilities of the build.

    `theirs` is the version of the official build. None where MAGMA is kept on no such machine.
    """
    cuda = question.plan.toolkit
    if question.host.system != "linux" or cuda is None:
        return None
    listed = question.plan.set.get("TORCH_CUDA_ARCH_LIST", "")
    serving = [
        one
        for one in question.facts.toolkit_sources
        if (one.kind, one.cuda) == (MAGMA, cuda)
        and question.build.arch in one.arches
        and not unserved(question.facts, ";".join(one.capabilities), listed)
    ]
    command = f"invoke toolkit --library magma-cu{cuda.replace('.', '')}"
    if serving:
        return f"{command} --arch-list '{listed}'"
    return f"{command}={theirs} --from FOLDER, where one lies that was compiled for {listed}"


def compiler(question: Question, name: str) -> str | None:
    """Return the command that brings a compiler, "gcc-11"; None as above."""
    wanted = Wanted(COMPILER, name, None, question.build.arch)
    return f"invoke toolkit --compiler {name}" if _can_be_had(question, wanted) else None


def _can_be_had(question: Question, wanted: Wanted) -> bool:
    if question.host.system != "linux":
        return False
    sources = question.facts.toolkit_sources
    return any(not isinstance(candidates(wanted, one, sources), Lacking) for one in PROVIDERS)
