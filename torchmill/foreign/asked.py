"""The builds for other machines that a command line names: they are many, so no others get a session."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from torchmill.matrix import Cell, buildable
from torchmill.model import Facts, Release

VARIABLE = "NOXSESSION"  # in which nox takes names, too


def names(words: Iterable[str], environ_names: str = "") -> frozenset[str]:
    """Return all that may be names of sessions; nox takes several in a word, separated by commas."""
    return frozenset(name.strip() for word in (*words, environ_names) for name in word.split(","))


def cells(
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
        for cell in buildable(facts, selected, arch):
            for word in (cell.build.session, *further(cell)):
                build = replace(cell.build, session=word)
                if build.identifier(native) in wanted:
                    yield build.identifier(arch), cell
