"""Edits of a setup.py that a draft proposes, as commands of sed that a build runs in its tree.

Each is tried by a dry run in an edited copy of the source, and only if that run shows what the edit
is for, it is among the facts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from torchmill.plan.package_draft.scenarios import Scenario
from torchmill.plan.package_draft.setup_run import SetupRun
from torchmill.plan.package_draft.setup_script import SETUP, Constant
from torchmill.plan.package_draft.source_texts import SourceTexts

ARCH_LIST = "TORCH_CUDA_ARCH_LIST"
Purpose = Literal["gpu", "capabilities", "arch list", "processor", "cpu constant", "cuda constant"]

# What an edit is for: the text that it changes, its commands of sed, the reason.
_GPU = re.compile(r"torch\.cuda\.(is_available|get_device_capability|device_count)\(")
_GPU_SCRIPT = (
    r"s/torch\.cuda\.is_available\(\)/True/g; "
    r"s/torch\.cuda\.get_device_capability\([^)]*\)/(9, 0)/g; "
    r"s/torch\.cuda\.device_count\(\)/1/g"
)
_CAPABILITIES = re.compile(
    r"-gencode|--generate-code|arch=compute_|-arch[= ](sm_|compute_|native|all)"
)
# A flag becomes a definition that nothing reads, a pair of flags "-Xcompiler -g0": lists of flags
# keep their lengths.
_CAPABILITIES_SCRIPT = (
    r"s/(--generate-code|-gencode)[= ]+arch=[^\"']*/-DCAPABILITIES_OF_BUILD/g; "
    r"s/-arch[= ]((sm|compute)_[0-9a-z]+|native|all[a-z-]*)/-DCAPABILITIES_OF_BUILD/g; "
    r"s/--generate-code=?|-gencode=?/-Xcompiler/g; "
    r"s/arch=compute_[^\"']*/-g0/g"
)
_SETS_LIST = re.compile(rf"environ\[[\"']{ARCH_LIST}[\"']\]\s*=[^=]")
_SETS_LIST_SCRIPT = (
    rf"s/environ\[([\"']){ARCH_LIST}([\"'])\] *=([^=])/environ[\1CAPABILITIES_OF_SETUP\2] =\3/g"
)
_PROCESSOR = re.compile(r"-m(arch|cpu)=native")
_PROCESSOR_SCRIPT = r"s/-m(arch|cpu)=native/-mtune=generic/g"


@dataclass(frozen=True, slots=True)
class Edit:
    """A command that changes files of the source before a build."""

    purpose: Purpose
    argv: tuple[str, ...]
    reason: str

    @property
    def when(self) -> dict[str, str]:
        """Return the condition of its rule: {} for one that is for every build."""
        if self.purpose == "cpu constant":
            return {"variant": "cpu"}
        return {"cuda": ">=0"} if self.purpose in {"gpu", "cuda constant"} else {}


def propose_edits(texts: SourceTexts, scenario: Scenario, run: SetupRun) -> list[Edit]:
    """Return the edits that a build may need; `run` is that of the chosen scenario.

    torch's extension builder takes the capabilities of TORCH_CUDA_ARCH_LIST unless a flag of the
    package names one (`_get_cuda_arch_flags` in torch/utils/cpp_extension.py).
    """
    edits: list[Edit] = []
    if scenario.gpu:
        edits += _edit(
            "gpu", texts, _GPU, _GPU_SCRIPT, "setup.py compiles for CUDA only where a GPU answers"
        )
    if run.names_capabilities:
        edits += _edit(
            "capabilities",
            texts,
            _CAPABILITIES,
            _CAPABILITIES_SCRIPT,
            "setup.py names its own compute capabilities; without them torch's extension builder "
            "takes those of the build",
        )
    if ARCH_LIST in run.changed:
        edits += _edit(
            "arch list",
            texts,
            _SETS_LIST,
            _SETS_LIST_SCRIPT,
            "setup.py replaces the compute capabilities of the build by its own",
        )
    if run.names_this_processor:
        edits += _edit(
            "processor",
            texts,
            _PROCESSOR,
            _PROCESSOR_SCRIPT,
            "a wheel must run on other processors than that which compiles it; --cpu chooses one",
        )
    return edits


def change_constant(constant: Constant, *, cuda: bool) -> Edit:
    """Return the edit that sets a constant of setup.py to its opposite, for one kind of build."""
    other = not constant.value
    script = rf"s/^({constant.name}\s*=\s*){constant.value}\b/\1{other}/"
    return Edit(
        "cuda constant" if cuda else "cpu constant",
        ("sed", "-i", "-E", script, SETUP),
        f"setup.py has {constant.name} = {constant.value}, and no variable changes it",
    )


def _edit(
    purpose: Purpose, texts: SourceTexts, pattern: re.Pattern[str], script: str, reason: str
) -> Iterator[Edit]:
    """Yield the edit of the files that have a text which it changes; nothing without such a file."""
    files = []
    for name in texts.texts:
        if name.endswith(".py") and pattern.search(texts.text(name)):
            files.append(name)
    if files:
        yield Edit(purpose, ("sed", "-i", "-E", script, *sorted(files)), reason)


def edit_works(edit: Edit, scenario: Scenario, run: SetupRun) -> bool:
    """Tell whether a run in an edited copy, without a GPU, shows what an edit is for.

    The run must have what the build of `scenario` has: code for CUDA, or libraries without it.
    """
    if not run.has_build(cuda=scenario.cuda):
        return False
    if edit.purpose == "capabilities":
        return not run.names_capabilities
    if edit.purpose == "arch list":
        return ARCH_LIST not in run.changed
    if edit.purpose == "processor":
        return not run.names_this_processor
    return True


def doubts_without_edits(
    scenario: Scenario, run: SetupRun, confirmed: Sequence[Edit]
) -> Iterator[str]:
    """Yield a sentence for each need of an edit that none of the `confirmed` edits meets."""
    purposes = {edit.purpose for edit in confirmed}
    if scenario.gpu and "gpu" not in purposes:
        yield "setup.py compiles for CUDA only where a GPU answers"
    if run.names_capabilities and "capabilities" not in purposes:
        yield "setup.py names compute capabilities itself, whatever --arch-list says"
    if ARCH_LIST in run.changed and "arch list" not in purposes:
        yield f"setup.py sets {ARCH_LIST} itself, whatever --arch-list says"
    if run.names_this_processor and "processor" not in purposes:
        yield "setup.py compiles for this machine's processor (-march=native)"
    if "MAX_JOBS" in run.changed:
        yield f"setup.py sets MAX_JOBS={run.changed['MAX_JOBS']} itself"


def escape_dollars(words: Sequence[str]) -> list[str]:
    """Return words as facts have them: "$" would begin a placeholder."""
    return [word.replace("$", "$$") for word in words]
