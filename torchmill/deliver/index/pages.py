"""The pages of a static package index: contents, layout, yanked versions (PEP 503, 592, 658, 691)."""

import contextlib
import hashlib
import json
import posixpath
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from torchmill.core.errors import ConfigError, DeliveryError
from torchmill.wheel import wheel_file
from torchmill.wheel.dist_files import PROVENANCE_SUFFIX
from torchmill.wheel.pack import metadata
from torchmill.wheel.wheel_file import Distribution

_FIELDS: dict[str, Any] = {
    "size": int,
    "sha256": str,
    "metadata_sha256": str,
    "requires_python": str | None,
    "requires": Sequence,
    "extras": Sequence,
    "uploaded": str,
}
API = "1.4"  # https://packaging.python.org/specifications/simple-repository-api
HTML, JSON = "index.html", "index.v1_json"
FLAT = "torch_stable.html"  # as people know it from the official index; it lists all packages
METADATA = ".metadata"  # after the wheel's name (PEP 658)
Documents = Mapping[str, Mapping[str, str]]  # sha256 by the wheel's file and by suffix
_exactly = cache(
    lambda version: SpecifierSet(f"=={version}")
)  # of each yanked version every wheel is asked
LINKED = {
    ".intoto.json": "statement",
    ".cdx.json": "sbom",
    ".intoto.jsonl": "signature",
    ".sigstore.json": "sigstore",
}


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """All that the pages say of a wheel."""

    file: str
    name: str  # normalised
    version: Version
    everywhere: bool  # belongs into the sub-index of every variant
    size: int  # bytes
    sha256: str
    metadata_sha256: str
    requires_python: str | None
    requires: tuple[str, ...]  # Requires-Dist
    extras: tuple[str, ...]  # Provides-Extra
    uploaded: str  # when the index first had it: "2026-11-22T10:40:00.000000Z"

    @property
    def place(self) -> str:
        """Return where the wheel lies in the index: as in the official one, in the folder of its variant."""
        return f"{self.version.local}/{self.file}" if self.version.local else self.file

    def as_data(self) -> dict[str, Any]:
        """Return what the file's name does not say, for JSON."""
        return {key: getattr(self, key) for key in _FIELDS}


def make_entry(wheel: Distribution, uploaded: str) -> IndexEntry:
    """Return the entry of a wheel."""
    headers = wheel_file.parse_headers(wheel.metadata)
    data = {
        "size": wheel.size,
        "sha256": wheel.sha256,
        "metadata_sha256": hashlib.sha256(wheel.metadata).hexdigest(),
        "requires_python": wheel.requires_python,
        "requires": wheel.requires,
        "extras": sorted(headers.get_all("Provides-Extra", [])),
        "uploaded": uploaded,
    }
    return restore_entry(wheel.path.name, data)


def restore_entry(file: str, data: Mapping[str, Any]) -> IndexEntry:
    """Return an entry from its file's name and `as_data`.

    Raises KeyError, TypeError or DeliveryError where that is not what `as_data` returned.
    """
    name, version, _, tags = wheel_file.parse_file_name(Path(file))
    if not all(isinstance(data[key], kind) for key, kind in _FIELDS.items()):
        raise TypeError("an entry of the state has a field of another type")
    fields = {key: data[key] for key in _FIELDS} | {
        key: tuple(data[key]) for key in ("requires", "extras")
    }
    # wheels for macOS have no variants: there is no CUDA, and no label
    all_variants = all(tag.platform == "any" or tag.platform.startswith("macosx_") for tag in tags)
    return IndexEntry(
        file, name, version, everywhere=version.local is None and all_variants, **fields
    )


def requirement_differences(entries: Iterable[IndexEntry]) -> Iterator[str]:
    """Yield a sentence for each version whose wheels differ in what they require."""
    versions: dict[tuple[str, str], list[IndexEntry]] = defaultdict(list)
    for entry in entries:
        versions[entry.name, str(entry.version)].append(entry)
    for (name, version), wheels in versions.items():
        first, *others = [
            (one.file, metadata.declared_needs(one.requires_python, one.requires, one.extras))
            for one in wheels
        ]
        differences = (metadata.needs_difference(first, other) for other in others)
        if difference := next(filter(None, differences), ""):
            yield f"{name} {version}: {difference}"


@dataclass(frozen=True, slots=True)
class PageLink:
    """A wheel on a page."""

    entry: IndexEntry
    url: str  # of the file, quoted; relative to the page, or absolute
    yanked: str | None  # the reason, which may be empty; None: it is not yanked
    metadata: bool  # whether METADATA lies beside the file (PEP 658)
    documents: Mapping[str, str]  # that lie beside it: suffix -> sha256

    @property
    def provenance(self) -> str:
        """Return the URL of its attestations, which the standard wants whole and safe; "" where it has none such."""
        there = PROVENANCE_SUFFIX in self.documents and self.url.startswith("https://")
        return f"{self.url}{PROVENANCE_SUFFIX}" if there else ""


def _project_json(name: str, links: Sequence[PageLink]) -> str:
    versions = sorted({link.entry.version for link in links})
    data = {
        "meta": {"api-version": API},
        "name": name,
        "versions": [str(version) for version in versions],
        "files": [_file(link) for link in links],
    }
    return json.dumps(data, indent=1) + "\n"


def _html(title: str, **lists: Sequence[object]) -> str:
    """Return a page with lists of `links`, `projects` or `variants`."""
    from torchmill.deliver.templates import fill_template

    values = {"links": (), "projects": (), "variants": (), "documents": LINKED, **lists}
    return fill_template("page.html.jinja", api=API, title=title, **values)


def _file(link: PageLink) -> dict[str, Any]:
    entry = link.entry
    fields: dict[str, Any] = {
        "filename": entry.file,
        "url": link.url,
        "hashes": {"sha256": entry.sha256},
        "size": entry.size,
        "upload-time": entry.uploaded,
        "yanked": False if link.yanked is None else link.yanked or True,
    }
    if entry.requires_python:
        fields["requires-python"] = entry.requires_python
    if (
        link.metadata
    ):  # not under its old name: pip 22.3 to 23.1 ends with a traceback on that (PEP 714)
        fields["core-metadata"] = {"sha256": entry.metadata_sha256}
    if link.provenance:
        fields["provenance"] = link.provenance
    for end, name in LINKED.items():  # the standard leaves names that begin with "_" to each index
        if end in link.documents:
            fields[f"_{name}"] = {"url": link.url + end, "sha256": link.documents[end]}
    return fields


def parse_yanked_version(option: str, text: str) -> str:
    """Return "torch==1.13.1+cpu" as the index keeps it; raise ConfigError where one version is not named."""
    with contextlib.suppress(InvalidRequirement, ValueError):
        asked = Requirement(text)
        (one,) = asked.specifier
        exact = Version(one.version)
        if one.operator == "==" and not (asked.extras or asked.marker or asked.url):
            return f"{canonicalize_name(asked.name)}=={exact}"
    raise ConfigError(
        f"{option} {text}: name one version, as torch==1.13.1+cpu", code="invalid-yank"
    )


def is_of_version(named: str, entry: IndexEntry) -> bool:
    """Tell whether a wheel is of a version; one without a label means all labels, as for pip."""
    name, _, exact = named.partition("==")
    return name == entry.name and _exactly(exact).contains(entry.version, prereleases=True)


def yank_reason(yanked: Mapping[str, str], entry: IndexEntry) -> str | None:
    """Return why a wheel is yanked, "" where nobody said why; None where it is not."""
    reasons = [why for named, why in sorted(yanked.items()) if is_of_version(named, entry)]
    return next((why for why in reasons if why), reasons[0]) if reasons else None


@dataclass(frozen=True, slots=True)
class YankChange:
    """What a user wants to be yanked, and no more; versions as the index keeps them."""

    yank: tuple[str, ...]
    unyank: tuple[str, ...]
    why: str


def parse_yank_options(yank: Iterable[str], unyank: Iterable[str], why: str) -> YankChange:
    """Return what is meant by options. Raises ConfigError for what makes no sense, whatever there is."""
    change = YankChange(
        tuple(parse_yanked_version("--yank", text) for text in yank),
        tuple(parse_yanked_version("--unyank", text) for text in unyank),
        " ".join(why.split()),
    )
    if change.why and not change.yank:
        raise ConfigError("--reason needs --yank NAME==VERSION", code="invalid-yank")
    if both := set(change.yank).intersection(change.unyank):
        raise ConfigError(
            f"--yank {min(both)} and --unyank {min(both)} contradict each other: give one of them",
            code="invalid-yank",
        )
    return change


def apply_yanks(
    before: Mapping[str, str], change: YankChange, entries: Iterable[IndexEntry]
) -> dict[str, str]:
    """Return what is yanked now. Raises ConfigError for a version that is not there, or not yanked."""
    entries = tuple(entries)
    for named in change.yank:
        if not any(is_of_version(named, entry) for entry in entries):
            name = named.partition("==")[0]
            there = sorted({entry.version for entry in entries if entry.name == name})
            has = f"of {name} it has {', '.join(map(str, there))}" if there else f"it has no {name}"
            raise ConfigError(
                f"--yank {named}: the index has no such version; {has}", code="unknown-version"
            )
    for named in change.unyank:
        if named not in before:
            raise ConfigError(
                f"--unyank {named}: yanked is {', '.join(sorted(before)) or 'nothing'}",
                code="unknown-version",
            )
    kept = {named: why for named, why in before.items() if named not in change.unyank}
    return kept | dict.fromkeys(change.yank, change.why)


Address = Callable[[IndexEntry, str], str]  # the wheel and the folder of the page -> the URL


def compute_pages(
    entries: Sequence[IndexEntry],
    yanked: Mapping[str, str],
    address: Address,
    documents: Documents,
    *,
    metadata: bool,
) -> dict[str, str]:
    """Return the pages for these wheels, which are sorted, by their place, in the order of writing.

    Raises DeliveryError where a label cannot be a folder.
    """
    variants = sorted({entry.version.local for entry in entries if entry.version.local})
    _require_room(variants, entries)
    reasons = {entry.file: yank_reason(yanked, entry) for entry in entries}

    def links(chosen: Iterable[IndexEntry], folder: str) -> list[PageLink]:
        return [
            PageLink(
                entry, address(entry, folder), reasons[entry.file], metadata, documents[entry.file]
            )
            for entry in chosen
        ]

    projects: dict[str, str] = {}
    lists: dict[str, str] = {}
    for variant in ("", *variants):
        inside = [
            entry for entry in entries if variant in {"", entry.version.local} or entry.everywhere
        ]
        names = list(dict.fromkeys(entry.name for entry in inside))
        for name in names:
            folder = posixpath.join(variant, name)
            chosen = links((entry for entry in inside if entry.name == name), folder)
            projects[f"{folder}/{HTML}"] = _html(f"Links for {name}", links=chosen)
            projects[f"{folder}/{JSON}"] = _project_json(name, chosen)
        below = () if variant else variants
        lists[posixpath.join(variant, HTML)] = _html("Simple index", projects=names, variants=below)
        listed = {"meta": {"api-version": API}, "projects": [{"name": name} for name in names]}
        lists[posixpath.join(variant, JSON)] = json.dumps(listed, indent=1) + "\n"
        lists[posixpath.join(variant, FLAT)] = _html("Wheels", links=links(inside, variant))
    return projects | lists


def _require_room(variants: Iterable[str], entries: Iterable[IndexEntry]) -> None:
    """Refuse a label whose folder would be a project's, or a page's."""
    names = {entry.name for entry in entries}
    for variant in variants:
        if variant in names or variant == HTML:
            raise DeliveryError(
                f"+{variant}: the label of a version cannot be the name of a "
                f"{'project' if variant in names else 'page'} of the same index: build it with another "
                "label, or index it by itself (--dist, --out)",
                code="label-collides",
            )
