"""The kinds of things that are kept, and what it costs to lose one."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain

from torchmill.errors import ConfigError
from torchmill.housekeeping import caches, checkout, delivered, published
from torchmill.housekeeping.items import Item, Place


@dataclass(frozen=True, slots=True)
class Kind:
    """Things that are found, and told of, together."""

    name: str
    cost: str  # of losing them, as a clause
    find: tuple[Callable[[Place], Iterable[Item]], ...]
    when: str = "chosen"  # it goes: "chosen" by age, release or size; "named" only; "never"

    def items(self, place: Place) -> list[Item]:
        """Return all that there is of it."""
        return list(chain.from_iterable(find(place) for find in self.find))


KINDS = (
    Kind("trees", "the next build compiles again, as far as no compiler cache helps", (checkout.trees,)),
    Kind("outputs", "packed and verified again, if the wheel has to be made again", (checkout.outputs,)),
    Kind("sources", "fetched again", (checkout.sources,)),
    Kind(
        "environments",
        "installed again, and what includes their headers compiled again",
        (checkout.environments,),
    ),
    Kind("logs", "`invoke report` has nothing to draw of those builds", (checkout.logs,)),
    Kind("members", "compressed again", (caches.members,)),
    Kind("downloads", "downloaded again", (caches.downloads,)),
    Kind("tools", "made or downloaded again, in seconds", (caches.tools,)),
    Kind("recall", "programs are asked again what they are, in a second", (caches.recall,)),
    Kind("demo", "`nox -s demo` takes a minute again", (checkout.demo,)),
    Kind("compilers", "every file is compiled anew once", (caches.ccache, caches.sccache), "named"),
    Kind("toolkits", "brought again, gigabytes for a toolkit", (caches.toolkits,), "named"),
    Kind("history", "the guard has to learn again what files take", (caches.history,), "named"),
    Kind("wheels", "built again", (checkout.wheels,), "named"),
    Kind("packages", "made again of their wheels, in minutes", (delivered.packages,), "named"),
    Kind(
        "index",
        "written again of `dist/`, in seconds; what is yanked stays noted",
        (published.index,),
        "named",
    ),
    Kind("channel", "indexed again of `dist/conda/`, in seconds", (published.channels,), "named"),
    Kind("images", "their folders are written again, in seconds", (published.images,), "named"),
    Kind("other", "not known", (caches.other,), "never"),
)
NAMES = tuple(kind.name for kind in KINDS if kind.when != "never")


def wanted(names: Iterable[str]) -> tuple[Kind, ...]:
    """Return the kinds of these names, or where there is none, all that go without being named.

    Raises ConfigError for a name that is no kind.
    """
    asked = tuple(names)
    unknown = [name for name in asked if name not in NAMES]
    if unknown:
        raise ConfigError(f"--kind {unknown[0]}: there is no such kind; it is one of {', '.join(NAMES)}")
    return tuple(kind for kind in KINDS if (kind.name in asked if asked else kind.when == "chosen"))


def of_all(place: Place, kinds: Iterable[Kind]) -> Iterator[Item]:
    """Yield the items of several kinds."""
    for kind in kinds:
        yield from kind.items(place)
