"""Edits of a setup.py that a draft proposes, as commands of sed that a build runs in its tree.

Each is tried by a dry run in an edited copy of the source, and only then it is among the facts.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from torchmill.plan.package_draft.setup_run import SetupRun
from torchmill.plan.package_draft.source_texts import SourceTexts

_GENCODE = re.compile(r"-gencode|--generate-code|arch=compute_|-arch[= ]sm_")
_AVAILABLE = re.compile(r"torch\.cuda\.is_available\(\)")


@dataclass(frozen=True, slots=True)
class Edit:
    """A command that changes a file of the source before a build."""

    argv: tuple[str, ...]
    reason: str
    cuda_only: bool = False


def without_own_capabilities(texts: SourceTexts, run: SetupRun) -> Edit | None:
    """Return the edit by which a setup.py leaves the compute capabilities to the build.

    torch's extension builder takes those of TORCH_CUDA_ARCH_LIST unless a flag of the package names
    one (`_get_cuda_arch_flags` in torch/utils/cpp_extension.py). Each flag is replaced by one that
    means nothing ("-Xcompiler -g0"), so that a list of flags stays a list of pairs. None if setup.py
    names none.
    """
    if not any(extension.capabilities for extension in run.extensions):
        return None
    files = [
        name for name in texts.texts if _GENCODE.search(texts.text(name)) and name.endswith(".py")
    ]
    if not files:
        return None
    script = (
        r"s/(--generate-code|-gencode)[= ]+arch=[^\"']*/-DCAPABILITIES_OF_BUILD/g; "
        r"s/-arch[= ]sm_[0-9a-z]+/-DCAPABILITIES_OF_BUILD/g; "
        r"s/--generate-code=?|-gencode=?/-Xcompiler/g; "
        r"s/arch=compute_[^\"']*/-g0/g"
    )
    return Edit(
        ("sed", "-i", "-E", script, *sorted(files)),
        "setup.py names its own compute capabilities; without them torch's extension builder takes "
        "those of the build",
    )


def with_assumed_gpu(texts: SourceTexts) -> Edit | None:
    """Return the edit by which a setup.py builds with CUDA on a machine without a GPU."""
    files = [
        name for name in texts.texts if _AVAILABLE.search(texts.text(name)) and name.endswith(".py")
    ]
    if not files:
        return None
    return Edit(
        ("sed", "-i", r"s/torch\.cuda\.is_available()/True/g", *sorted(files)),
        "setup.py compiles for CUDA only where a GPU answers",
        cuda_only=True,
    )


def escape_dollars(words: Sequence[str]) -> list[str]:
    """Return words as facts have them: "$" would begin a placeholder."""
    return [word.replace("$", "$$") for word in words]
