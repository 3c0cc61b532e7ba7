"""Which of the kept MAGMA a cell is linked with: one of its toolkit, with code for all its GPUs."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from packaging.version import Version

from torchmill.capabilities.serving import unserved
from torchmill.cuda import libraries
from torchmill.demands import Demands
from torchmill.model import Facts, Host

NAME = "magma"
_KEPT = re.compile(r"magma-(?P<version>\d+(?:\.\d+)*)-cu(?P<cuda>\d+)-(?P<code>[\d._+PTXaf]+)")


@dataclass(frozen=True, slots=True)
class Magma:
    """One that is kept. Its code for GPUs is its own: a build cannot add to it."""

    name: str  # under which it is kept: "magma-2.6.1-cu118-7.0_8.6+PTX"
    version: str
    cuda: str  # "118": the toolkit that compiled it
    code: str  # "7.0;8.6+PTX"


def named(beginning: str, code: str) -> str:
    """Return under which name one is kept, from "magma-2.6.1-cu118" and its code: "7.0;8.6"."""
    return f"{beginning}-{code.replace(';', '_')}"


def kept(names: Iterable[str], cuda: str) -> Iterator[Magma]:
    """Yield what is kept for a toolkit, "11.8", by the names of all that is kept."""
    for name in names:
        match = _KEPT.fullmatch(name)
        if match and match["cuda"] == cuda.replace(".", ""):
            yield Magma(name, match["version"], match["cuda"], match["code"].replace("_", ";"))


def taken(demands: Demands, host: Host, settings: Mapping[str, str], listed: str) -> Magma | None:
    """Return the kept one that a cell takes, the official build's version before others; None: it takes none.

    `listed` are its compute capabilities, "" where they are left to the build. A user's variables for MAGMA,
    or one that the machine has, leave it out, as for other libraries.
    """
    cuda = demands.cell.build.cuda
    asked = NAME in libraries.ruled(demands, "kept") and not libraries.spoken_of(NAME, settings)
    if cuda is None or not asked or libraries.in_sight(host, NAME, cuda) is not None:
        return None
    return best(demands.facts, host.kept, cuda, listed, libraries.official(demands.cell).magma)


def best(facts: Facts, names: Iterable[str], cuda: str, listed: str, theirs: str | None) -> Magma | None:
    """Return the kept one that serves a list: the version `theirs`, else the newest."""
    serving = [one for one in kept(names, cuda) if not unserved(facts, one.code, listed)]
    order = {one: (one.version == theirs, Version(one.version), one.name) for one in serving}
    return max(serving, key=lambda one: order[one], default=None)
