"""What is known of a failed build: facts, each with the line or the file that says it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from torchmill.config.versions import is_version

# Where a fact comes from. Of two that contradict each other the earlier origin here counts: the log
# shows what the build really used, a description only what the machine has now.
# "machine" is this one, where it was not said on which machine the build failed.
Origin = Literal["log", "session", "collect_env", "host", "machine", "rules"]
_ORIGINS: tuple[Origin, ...] = get_args(Origin)


@dataclass(frozen=True, slots=True)
class Fact:
    """Something that is known of a build or its machine."""

    name: str  # "gcc", as log_facts.toml describes it
    value: str  # "11.4.0"
    origin: Origin
    line: int = 0  # of the log, counted from 1; 0: it is not from the log
    text: str = ""  # that line, at most shortened
    basis: tuple[Fact, ...] = ()  # of a fact of the rule book: those that it was computed from
    is_stated: bool = False  # a person wrote it, and no tool printed it


@dataclass(frozen=True, slots=True)
class Contradiction:
    """Two facts of one name that exclude each other: the one that counts has the better origin."""

    counted: Fact
    ignored: Fact


@dataclass(frozen=True, slots=True)
class Situation:
    """All facts of a failed build, and those that were contradicted."""

    facts: Mapping[str, Fact] = field(default_factory=dict)  # by their names
    contradictions: tuple[Contradiction, ...] = ()

    def value(self, name: str) -> str | None:
        """Return the value of a fact; None if it is not known."""
        fact = self.facts.get(name)
        return fact.value if fact else None

    def values(self) -> dict[str, str]:
        """Return the values of all facts by their names."""
        return {name: fact.value for name, fact in self.facts.items()}

    def known_facts(self, *names: str) -> tuple[Fact, ...]:
        """Return the facts of some names, without those that are not known."""
        return tuple(self.facts[name] for name in names if name in self.facts)

    def computed(self, name: str, value: str, *basis: str) -> Fact:
        """Return a fact of the rules that is computed from others, as far as they are known."""
        facts = [self.facts[part] for part in basis if part in self.facts]
        return Fact(name, value, "rules", basis=tuple(facts))

    def with_fact(self, fact: Fact) -> Situation:
        """Return the situation with a fact in place of what was known by its name."""
        return Situation({**self.facts, fact.name: fact}, self.contradictions)

    def with_facts(self, further: Iterable[Fact]) -> Situation:
        """Return the situation with further facts; a known fact is not replaced."""
        facts = dict(self.facts)
        for fact in further:
            facts.setdefault(fact.name, fact)
        return Situation(facts, self.contradictions)


def make_situation(facts: Iterable[Fact]) -> Situation:
    """Return the situation that some facts describe; of each name the best origin counts.

    Of facts of one origin, the first does.
    """
    by_name: dict[str, Fact] = {}
    contradictions: list[Contradiction] = []
    for fact in sorted(facts, key=lambda fact: _ORIGINS.index(fact.origin)):
        counted = by_name.setdefault(fact.name, fact)
        if contradict(counted, fact):
            contradictions.append(Contradiction(counted, fact))
    return Situation(by_name, tuple(contradictions))


def contradict(counted: Fact, other: Fact) -> bool:
    """Tell whether two facts of different origins exclude each other.

    "11" and "11.4.0" do not, nor do "2.9.1" and "2.9.1+cu128": the first is said with fewer parts.
    Of names that are no versions, one may have further words: "NVIDIA GeForce RTX 3090".
    """
    if counted.origin == other.origin:
        return False
    shorter, longer = sorted((counted.value.lower(), other.value.lower()), key=len)
    if is_version(shorter):
        return longer != shorter and not longer.startswith(
            (f"{shorter}.", f"{shorter}+", f"{shorter} ")
        )
    return f" {shorter} " not in f" {longer} "


def evidence(facts: Iterable[Fact]) -> Iterator[Fact]:
    """Yield the observed facts behind some facts, each once.

    Those of the log are first, in its order; the others follow in the order of `facts`.
    """
    observed: dict[tuple[str, str], Fact] = {}
    for fact in facts:
        for basis in evidence(fact.basis) if fact.basis else (fact,):
            observed.setdefault((basis.name, basis.value), basis)
    yield from sorted(observed.values(), key=lambda fact: (fact.line == 0, fact.line))
