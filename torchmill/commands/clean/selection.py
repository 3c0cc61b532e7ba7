"""Select which stored items to remove: by kind, age, release and size."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TypeVar

from torchmill.commands.clean import caches, checkout
from torchmill.commands.clean.items import StoragePlace, StoredItem
from torchmill.config.matrix import base_package, find_release, releases_of
from torchmill.config.model import Facts
from torchmill.core.errors import ConfigError
from torchmill.core.units import parse_bytes, parse_duration


@dataclass(frozen=True, slots=True)
class StorageKind:
    """Things that are found, and told of, together."""

    name: str
    cost: str  # of losing them, as a clause
    find: tuple[Callable[[StoragePlace], Iterable[StoredItem]], ...]
    when: str = "chosen"  # it goes: "chosen" by age, release or size; "named" only; "never"

    def items(self, place: StoragePlace) -> list[StoredItem]:
        """Return all that there is of it."""
        return list(chain.from_iterable(find(place) for find in self.find))


KINDS = (
    StorageKind(
        "trees", "the next build compiles again, as far as no compiler cache helps", (checkout.find_trees,)
    ),
    StorageKind(
        "outputs", "packed and verified again, if the wheel has to be made again", (checkout.find_outputs,)
    ),
    StorageKind("sources", "fetched again", (checkout.find_sources,)),
    StorageKind(
        "environments",
        "installed again, and what includes their headers compiled again",
        (checkout.find_environments,),
    ),
    StorageKind("logs", "`invoke report` has nothing to draw of those builds", (checkout.find_logs,)),
    StorageKind("members", "compressed again", (caches.find_members,)),
    StorageKind("downloads", "downloaded again", (caches.find_downloads,)),
    StorageKind("tools", "made or downloaded again, in seconds", (caches.find_tools,)),
    StorageKind("recall", "programs are asked again what they are, in a second", (caches.find_stat_cache,)),
    StorageKind("demo", "`nox -s demo` takes a minute again", (checkout.find_demo,)),
    StorageKind(
        "compilers", "every file is compiled anew once", (caches.find_ccache, caches.find_sccache), "named"
    ),
    StorageKind("toolkits", "brought again, gigabytes for a toolkit", (caches.find_toolkits,), "named"),
    StorageKind("history", "the guard has to learn again what files take", (caches.find_history,), "named"),
    StorageKind("wheels", "built again", (checkout.find_wheels,), "named"),
    StorageKind("packages", "made again of their wheels, in minutes", (checkout.find_packages,), "named"),
    StorageKind(
        "index",
        "written again of `dist/`, in seconds; what is yanked stays noted",
        (checkout.find_index,),
        "named",
    ),
    StorageKind("channel", "indexed again of `dist/conda/`, in seconds", (checkout.find_channels,), "named"),
    StorageKind("images", "their folders are written again, in seconds", (checkout.find_images,), "named"),
    StorageKind("other", "not known", (caches.find_unknown,), "never"),
)
NAMES = tuple(kind.name for kind in KINDS if kind.when != "never")


def kinds_named(names: Iterable[str]) -> tuple[StorageKind, ...]:
    """Return the kinds of these names, or where there is none, all that go without being named.

    Raises ConfigError for a name that is no kind.
    """
    asked = tuple(names)
    unknown = [name for name in asked if name not in NAMES]
    if unknown:
        raise ConfigError(f"--kind {unknown[0]}: there is no such kind; it is one of {', '.join(NAMES)}")
    return tuple(kind for kind in KINDS if (kind.name in asked if asked else kind.when == "chosen"))


def items_of_kinds(place: StoragePlace, kinds: Iterable[StorageKind]) -> Iterator[StoredItem]:
    """Yield the items of several kinds."""
    for kind in kinds:
        yield from kind.items(place)


Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class CleanCriteria:
    """What a user said of what shall go; all of it must hold."""

    kinds: tuple[StorageKind, ...]
    idle: float | None = None  # seconds that nobody needed it
    tags: frozenset[str] | None = None
    free: int | None = None  # bytes that are enough


def parse_criteria(facts: Facts, names: Sequence[str], age: str, release: str, free: str) -> CleanCriteria:
    """Read what a user said; nothing at all would mean everything, and is refused.

    Raises ConfigError for what has no sense, UnknownReleaseError for a tag that no release has.
    """
    if not (names or age or release or free):
        raise ConfigError(
            "invoke clean: say what shall go: --kind KIND, --age 30d, --release TAG, --free SIZE, or several "
            "of them; `invoke status` shows what there is, and --dry-run only tells"
        )
    return CleanCriteria(
        kinds_named(names),
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


def items_to_remove(items: Iterable[StoredItem], said: CleanCriteria, now: float) -> list[StoredItem]:
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
