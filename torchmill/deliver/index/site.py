"""Which pages an index has, and where everything lies: computed from the wheels, touching nothing.

index.html, index.v1_json, torch_stable.html      all wheels
torch/index.html, torch/index.v1_json             those of a project
cpu/index.html, cpu/torch/index.html, …           the same for one variant
cpu/torch-1.13.1+cpu-….whl, ….whl.metadata        the files
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import quote

from torchmill.deliver.index import pages, yanking
from torchmill.deliver.index.entry import Entry
from torchmill.deliver.index.pages import Link
from torchmill.errors import DeliveryError

METADATA = ".metadata"  # after the wheel's name (PEP 658)
Address = Callable[[Entry, str], str]  # the wheel and the folder of the page -> the URL


@dataclass(frozen=True, slots=True)
class Site:
    """The pages by their place, in the order in which they may be written."""

    pages: Mapping[str, str]
    variants: tuple[str, ...]


def relative(entry: Entry, folder: str) -> str:
    """Return the URL of a wheel in the index, as a page in `folder` says it."""
    return quote(posixpath.relpath(entry.place, folder or "."))


def below(base: str) -> Address:
    """Return what makes URLs where the index is uploaded in parts: the wheels below `base`."""
    return lambda entry, _: f"{base}/{quote(entry.place)}"


def computed(
    entries: Sequence[Entry], yanked: Mapping[str, str], address: Address, *, metadata: bool
) -> Site:
    """Return the site of these wheels, which are in order. Raises DeliveryError where a label cannot be."""
    variants = tuple(sorted({entry.variant for entry in entries if entry.variant}))
    _require_room(variants, entries)

    def links(chosen: Iterable[Entry], folder: str) -> list[Link]:
        return [
            Link(entry, address(entry, folder), yanking.reason(yanked, entry), metadata) for entry in chosen
        ]

    projects: dict[str, str] = {}
    lists: dict[str, str] = {}
    for variant in ("", *variants):
        inside = [entry for entry in entries if variant in {"", entry.variant} or entry.everywhere]
        names = list(dict.fromkeys(entry.name for entry in inside))
        for name in names:
            folder = posixpath.join(variant, name)
            found = links((entry for entry in inside if entry.name == name), folder)
            projects[f"{folder}/{pages.HTML}"] = pages.project_html(name, found)
            projects[f"{folder}/{pages.JSON}"] = pages.project_json(name, found)
        told = variants if not variant else ()
        lists[posixpath.join(variant, pages.HTML)] = pages.list_html(names, told)
        lists[posixpath.join(variant, pages.JSON)] = pages.list_json(names)
        lists[posixpath.join(variant, pages.FLAT)] = pages.flat(links(inside, variant))
    return Site(projects | lists, variants)


def _require_room(variants: Iterable[str], entries: Iterable[Entry]) -> None:
    """Refuse a label whose folder would be a project's, or a page's."""
    names = {entry.name for entry in entries}
    for variant in variants:
        if variant in names or variant == pages.HTML:
            raise DeliveryError(
                f"+{variant}: the label of a version cannot be called as a "
                f"{'project' if variant in names else 'page'} of the same index: build it with another "
                "label, or index it by itself (--dist, --out)"
            )
