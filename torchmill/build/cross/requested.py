"""Find the builds for other architectures that a command line names."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from torchmill.config.matrix import Cell, buildable_cells
from torchmill.config.model import Facts, Release

VARIABLE = "NOXSESSION"  # in which nox takes names, too


def session_names(words: Iterable[str], environ_names: str = "") -> frozenset[str]:
    """Return all that may be names of sessions; nox takes several in a word, separated by commas."""
    return frozenset(name.strip() for word in (*words, environ_names) for name in word.split(","))


def requested_cells(
    facts: Facts,
    selected: Release | None,
    native: str,
    wanted: frozenset[str],
    further: Callable[[Cell], Iterable[str]] = lambda _: (),
) -> Iterator[tuple[str, Cell]]:
    """Yield the wanted cells of other machines, each with its name there.

    `further` says what else is made of a cell's wheel: "libtorch-3.10-cpu-aarch64" is "libtorch-3.10-cpu" on
    an aarch64 machine.
    """
    for arch in facts.arches:
        if arch == native or not any(name.endswith(f"-{arch}") for name in wanted):
            continue
        for cell in buildable_cells(facts, selected, arch):
            for word in (cell.build.session, *further(cell)):
                build = replace(cell.build, session=word)
                if build.identifier(native) in wanted:
                    yield build.identifier(arch), cell
