"""Which items shall go: by kind, age and release, the one that was needed least recently first."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from torchmill.errors import ConfigError
from torchmill.housekeeping import kinds
from torchmill.housekeeping.items import Item
from torchmill.housekeeping.kinds import Kind
from torchmill.matrix import base_package, find_release, releases_of
from torchmill.model import Facts
from torchmill.quantity import parse_bytes, parse_duration

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Criteria:
    """What a user said of what shall go; all of it must hold."""

    kinds: tuple[Kind, ...]
    idle: float | None = None  # seconds that nobody needed it
    tags: frozenset[str] | None = None
    free: int | None = None  # bytes that are enough


def criteria(facts: Facts, names: Sequence[str], age: str, release: str, free: str) -> Criteria:
    """Read what a user said; nothing at all would mean everything, and is refused.

    Raises ConfigError for what has no sense, UnknownReleaseError for a tag that no release has.
    """
    if not (names or age or release or free):
        raise ConfigError(
            "invoke clean: say what shall go: --kind KIND, --age 30d, --release TAG, --free SIZE, or several "
            "of them; `invoke status` shows what there is, and --dry-run only tells"
        )
    return Criteria(
        kinds.wanted(names),
        _read("age", age, parse_duration),
        _tags(facts, release) if release else None,
        _read("free", free, parse_bytes),
    )


def _tags(facts: Facts, tag: str) -> frozenset[str]:
    """Return the tags of a release and its partners; of a partner alone, its own."""
    base = base_package(facts).name
    partners = {one.tag for name, releases in facts.releases.items() if name != base for one in releases}
    if tag in partners and all(tag != one.tag for one in facts.releases[base]):
        return frozenset({tag})
    return frozenset(one.tag for one in releases_of(facts, find_release(facts, base, tag)))


def _read(option: str, text: str, parse: Callable[[str], Value]) -> Value | None:
    try:
        return parse(text) if text else None
    except ValueError as error:
        raise ConfigError(f"invoke clean: --{option}: {error}") from None


def due(items: Iterable[Item], said: Criteria, now: float) -> list[Item]:
    """Return what may go by age and release, needed least recently first, and last what goes in parts.

    A time that is still to come, which a clock that went backwards leaves, is no age.
    """
    return sorted(
        (
            one
            for one in items
            if said.idle is None or not one.whole or now - one.used >= said.idle
            if said.tags is None or one.tag in said.tags
        ),
        key=lambda one: (not one.whole, one.used, one.kind, one.name),
    )
