"""The verified wheel of a cell, found in dist/: what conda packages and libtorch archives are made from."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchmill import artifact, host, plan, source
from torchmill.errors import DeliveryError
from torchmill.layout import Layout
from torchmill.matrix import Cell
from torchmill.model import Facts, Plan
from torchmill.options import parse
from torchmill.recall import Recall


@dataclass(frozen=True, slots=True)
class Verified:
    """A wheel in dist/, and what is known of it."""

    layout: Layout
    facts: Facts
    cell: Cell
    plan: Plan
    wheel: Path
    manifest: Mapping[str, Any]  # what is told beside it


def find(root: Path, known: Facts, cell: Cell, arguments: Sequence[str]) -> Verified | None:
    """Return the wheel in dist/ that a cell's session with these arguments makes; None where there is none.

    It is taken as it is: whether its source has changed since is for its own session to find out. Raises
    ConfigError for arguments without sense.
    """
    layout = Layout.of(root)
    recall = Recall(layout.cache / "recall.json")
    machine = host.measure(layout.root) if cell.build.cuda else host.basis(recall)
    options = parse(arguments, f"nox -s {cell.build.identifier(machine.arch)} --")
    fetched = source.load(layout, cell.build.package, cell.release.tag)
    planned = plan.compute(known, cell, machine, options, fetched)
    wheel = artifact.place(layout.dist, planned)
    told = artifact.record(wheel)
    return Verified(layout, known, cell, planned, wheel, told) if wheel.is_file() and told else None


def require(root: Path, known: Facts, cell: Cell, arguments: Sequence[str]) -> Verified:
    """Return what `find` finds; raises DeliveryError where there is nothing."""
    found = find(root, known, cell, arguments)
    if found is None:
        raise DeliveryError(
            f"{cell.build.package} {cell.release.version}, Python {cell.build.python}, {cell.build.variant}: "
            "dist/ has no verified wheel of it after its session: build it with nox and try again"
        )
    return found
