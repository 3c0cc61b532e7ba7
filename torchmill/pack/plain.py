"""The plain linux tag: a wheel for systems like this one, which promises nothing and carries little along."""

from __future__ import annotations

import re
from dataclasses import dataclass

from torchmill.pack.policy import DRIVER, LOADER, MACHINES
from torchmill.pack.search import Search

TAG = re.compile(r"linux_(?P<arch>\w+)")


@dataclass(frozen=True, slots=True)
class Plain:
    """The plain linux tag of one machine: what the loader of this system finds by itself stays outside."""

    tag: str
    arch: str
    search: Search

    @property
    def machine(self) -> str | None:
        """Return the ELF machine of this arch, None where no name for it is known."""
        return MACHINES.get(self.arch)

    def on_system(self, library: str) -> bool:
        """Say whether the wheel may rely on `library` being where it runs."""
        if LOADER.fullmatch(library) or DRIVER.fullmatch(library):
            return True
        return self.search.by_itself(library, self.machine) is not None


def target(tag: str, search: Search) -> Plain | None:
    """Return the target of a plain linux tag, None for any other tag."""
    match = TAG.fullmatch(tag)
    return Plain(tag, match["arch"], search) if match else None
