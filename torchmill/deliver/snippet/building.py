"""What would have to be built for a wheel that is not there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torchmill.deliver.snippet import platforms
from torchmill.deliver.snippet.words import Request
from torchmill.matrix import CPU, Cell, cell
from torchmill.model import Arch, Build, Facts


@dataclass(frozen=True, slots=True)
class Lacking:
    """A wheel that is not there."""

    package: str
    variant: str
    python: str
    arch: Arch


def advice(facts: Facts, request: Request, lacking: Sequence[Lacking]) -> str:
    """Return the command that builds what can be built of some wheels, or why nothing can."""
    cells = [found for one in lacking for found in _cells(facts, request, one)]
    possible = [one.build for one in cells if one.possible]
    if not possible:
        reasons = [one.reason for one in cells if one.reason]
        return f"it cannot be built: {reasons[0]}" if reasons else "no session builds it"
    arch = facts.arches[possible[0].arch]
    # a container can be another machine, but only with Linux in it
    elsewhere = arch.system != "linux" and arch.name != request.native
    names = dict.fromkeys(one.identifier(one.arch if elsewhere else request.native) for one in possible)
    return f"build with `nox -s {' '.join(names)}`" + (f", on {platforms.name(arch)}" if elsewhere else "")


def _cells(facts: Facts, request: Request, lacking: Lacking) -> Iterator[Cell]:
    """Yield the cell that a wheel is of, possible or not; none for a variant of no session."""
    toolkit = next((one for one in facts.toolkits if one.variant == lacking.variant), None)
    if toolkit is None and lacking.variant != CPU:
        return
    package, cuda = facts.packages[lacking.package], toolkit.version if toolkit else None
    build = Build(package.name, package.session, lacking.python, lacking.variant, lacking.arch.name, cuda)
    yield cell(facts, request.release(package.name), build)
