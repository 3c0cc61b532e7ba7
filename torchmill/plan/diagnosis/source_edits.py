"""The command that edits old code so that it fits a newer torch or CUDA, as its maintainers would."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from packaging.version import Version

from torchmill.core.package_data import read_table_beside
from torchmill.plan.diagnosis.candidates import meets

_EDITS = read_table_beside(__file__, "source_edits.toml")
_NEWLINE = r"\n"  # in a replacement


@dataclass(frozen=True, slots=True)
class SourceEdit:
    """A replacement in source files, and the release that makes it necessary."""

    names: str  # that compilers report, as the words of a condition: "THC/*|THCUNN/*"
    product: str  # "torch" or "cuda"
    since: Version
    old: str  # an extended regular expression
    new: str


@cache
def _source_edits() -> tuple[SourceEdit, ...]:
    """Return the edits of source_edits.toml, in their order."""
    return tuple(
        SourceEdit(
            "|".join(table["names"]),
            table["of"],
            Version(table["since"]),
            table["old"],
            table["new"],
        )
        for table in _EDITS["edit"]
    )


def edit_command(name: str, torch: str | None, cuda: str | None, system: str | None) -> str:
    """Return the command that edits the code below the current folder; "" if no edit is known.

    `name` is what the compiler does not know. The versions of torch and CUDA are None if they are
    not known: then the code is edited for the release with which this name is gone, and nothing is
    edited if they are older than that.
    """
    reported = [edit for edit in _source_edits() if meets(edit.names, name)]
    if not reported:
        return ""
    product = reported[0].product
    version = torch if product == "torch" else cuda
    needed = Version(version) if version else reported[0].since
    if needed < reported[0].since:
        return ""
    edits = [edit for edit in _source_edits() if edit.product == product and edit.since <= needed]
    if system == "windows":
        return _powershell_command(edits)
    program = "perl -pi" if system == "macos" else "sed -i -E"
    expressions = " ".join(f"-e 's#{_escape(edit.old)}#{_escape(edit.new)}#g;'" for edit in edits)
    return f"find . -name '*.[ch]*' -type f -exec {program} {expressions} {{}} +"


def _escape(text: str) -> str:
    """Return an expression of sed and Perl in which "#" is no separator."""
    return text.replace("#", r"\#")


def _powershell_command(edits: Sequence[SourceEdit]) -> str:
    """Return the command of PowerShell that makes edits in all files of C++ and CUDA."""
    replacements: list[str] = []
    for edit in edits:
        new = f"'{edit.new}'"
        if _NEWLINE in edit.new:
            new = f"({new.replace(_NEWLINE, '{0}')} -f [char]10)"
        replacements.append(f"-creplace '{edit.old}',{new}")
    return (
        "Get-ChildItem -Recurse -Include *.cu,*.cuh,*.cc,*.cpp,*.h,*.hpp | ForEach-Object "
        f"{{ (Get-Content $_) {' '.join(replacements)} | Set-Content $_ }}"
    )
