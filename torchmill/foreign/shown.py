"""The container of a build for another machine, as `invoke plan` prints it before anything is done."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchmill.containers.running import Container, Run
from torchmill.errors import HostError, ImpossibleBuildError
from torchmill.foreign import session
from torchmill.foreign.planning import Goal
from torchmill.matrix import Cell
from torchmill.model import Facts, Host, Options


@dataclass(frozen=True, slots=True)
class Shown:
    """What would run, or why nothing can."""

    missing: str  # "" where there is an engine
    sentences: tuple[str, ...] = ()
    container: Container | None = None
    steps: Run | None = None

    def as_text(self) -> str:
        """Return it for a person to read."""
        if self.container is None or self.steps is None:
            return f"\nin a container, which cannot be had: {self.missing}"
        lines = ["", "in a container", *(f"  {sentence}" for sentence in self.sentences)]
        commands = (*self.steps.before, self.steps.main, self.steps.after)
        return "\n".join([*lines, *(f"  {shlex.join(argv)}" for argv in commands)])

    def as_data(self) -> Mapping[str, Any]:
        """Return it as JSON-ready data."""
        if self.container is None or self.steps is None:
            return {"missing": self.missing}
        return {
            "image": self.container.image,
            "arch": self.container.arch,
            "mounts": [
                {"source": one.source, "target": one.target, "writable": one.writable}
                for one in self.container.mounts
            ],
            "variables": dict(self.container.variables),
            "passed": list(self.container.passed),
            "commands": [list(argv) for argv in (*self.steps.before, self.steps.main, self.steps.after)],
            "sentences": list(self.sentences),
        }


def of(facts: Facts, cell: Cell, machine: Host, options: Options) -> Shown:
    """Return the container of a cell on this machine, or what there is none for.

    Raises ConfigError where a path cannot be given to one.
    """
    root = Path(__file__).parents[2]
    goal = Goal(cell, cell.build.identifier(cell.build.arch))
    asked = session.chosen(options)
    try:
        made = session.prepare(root, facts, goal, asked, machine)
    except (HostError, ImpossibleBuildError) as error:
        return Shown(str(error))
    missing = (f"missing: {why}" for why in session.hindrances(facts, machine, made))
    sentences = (*session.told(facts, machine, asked, made), *missing)
    return Shown("", sentences, made.container, made.steps)
