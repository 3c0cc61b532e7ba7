"""Whether all wheels of a version require the same: uv asks one of them, and believes it of all."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

from packaging.requirements import InvalidRequirement, Requirement

from torchwright.deliver.index.entry import Entry


def differences(entries: Iterable[Entry]) -> Iterator[str]:
    """Yield a sentence for each version whose wheels differ in what they require."""
    versions: dict[tuple[str, str], list[Entry]] = defaultdict(list)
    for entry in entries:
        versions[entry.name, str(entry.version)].append(entry)
    for (name, version), wheels in versions.items():
        first, *others = wheels
        for other in others:
            if told := _difference(_required(first), _required(other)):
                yield (
                    f"{name} {version}: {other.file} says otherwise than {first.file} what it needs: {told}; "
                    "uv asks one of them, and believes it of all: build them alike, with markers for what "
                    "differs"
                )
                break


def _required(entry: Entry) -> frozenset[str]:
    lines = {_normal(line) for line in entry.requires}
    lines |= {f"extra {extra}" for extra in entry.extras}
    return frozenset(lines | ({f"Python {entry.requires_python}"} if entry.requires_python else set()))


def _normal(line: str) -> str:
    try:
        return str(Requirement(line))
    except InvalidRequirement:
        return line


def _difference(one: frozenset[str], other: frozenset[str]) -> str:
    more, less = sorted(other - one), sorted(one - other)
    parts = [f"also {', '.join(more)}"] if more else []
    parts += [f"not {', '.join(less)}"] if less else []
    return ", but ".join(parts)
