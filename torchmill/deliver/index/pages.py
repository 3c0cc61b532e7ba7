"""The pages of a static package index, their layout and their contents (PEP 503, 658, 691).

For each project there is a page with links to its wheels, and for the index a list of projects.
Each page exists as HTML and as JSON. A sub-index has the same pages, with the wheels of one
variant.
"""

import json
import posixpath
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from torchmill.core.errors import DeliveryError
from torchmill.deliver.index.entries import IndexEntry, ReferredWheel
from torchmill.deliver.index.variant_files import VariantsFile, compose_variants_files
from torchmill.deliver.index.yanks import yank_reason
from torchmill.wheel.dist_files import PROVENANCE_SUFFIX

API = "1.4"  # https://packaging.python.org/specifications/simple-repository-api
HTML = "index.html"
JSON = "index.v1_json"
FLAT = "torch_stable.html"  # lists all wheels; the official index made the name known
PAGE_NAMES = (HTML, JSON, FLAT)
METADATA = ".metadata"  # the suffix of a wheel's METADATA beside it (PEP 658)

# The suffixes of documents that pages link to -> their names in the links.
LINKED = {
    ".intoto.json": "statement",
    ".cdx.json": "sbom",
    ".intoto.jsonl": "signature",
    ".sigstore.json": "sigstore",
}

# The sha256 of the documents beside each wheel, by the wheel's file and by suffix.
Documents = Mapping[str, Mapping[str, str]]

# Returns the URL of a wheel for a page; the second argument is the folder of the page.
UrlOf = Callable[[IndexEntry, str], str]


@dataclass(frozen=True, slots=True)
class PageLink:
    """A wheel on a page."""

    entry: IndexEntry
    url: str  # of the file, quoted; relative to the page, or absolute
    yanked: str | None  # the reason, which may be empty; None: it is not yanked
    metadata: bool  # METADATA lies beside the file (PEP 658)
    documents: Mapping[str, str]  # beside the file: suffix -> sha256
    foreign_provenance: str = ""  # the URL of its attestations at another index

    @property
    def provenance(self) -> str:
        """Return the URL of its attestations, "" if there are none.

        The standard allows only absolute URLs of HTTPS:
        https://packaging.python.org/specifications/index-hosted-attestations/
        """
        if self.foreign_provenance.startswith("https://"):
            return self.foreign_provenance
        if PROVENANCE_SUFFIX in self.documents and self.url.startswith("https://"):
            return f"{self.url}{PROVENANCE_SUFFIX}"
        return ""


@dataclass(frozen=True, slots=True)
class VariantsLink:
    """The metadata of a version's variants on a page."""

    file: VariantsFile
    url: str  # quoted, relative to the page

    @property
    def fields(self) -> dict[str, Any]:
        """Return its fields on the JSON page of its project."""
        return {
            "filename": self.file.file,
            "url": self.url,
            "hashes": {"sha256": self.file.sha256},
            "size": self.file.size,
            "yanked": False,
        }


def compute_pages(
    entries: Sequence[IndexEntry],
    yanked: Mapping[str, str],
    url_of: UrlOf,
    documents: Documents,
    *,
    metadata: bool,
    references: Iterable[ReferredWheel] = (),
) -> dict[str, str]:
    """Return the pages for some wheels by their path in the index, in the order of writing.

    The entries are sorted. `yanked` are the yanked versions with their reasons. `metadata` says
    that METADATA lies beside each wheel. `references` are wheels at other indexes. The pages of
    projects come before the lists that link to them. Raises DeliveryError if a label cannot be the
    name of a folder, or variants contradict each other.
    """
    # Each variant has a sub-index of its own, as the official index has.
    referred = {wheel.entry.file: wheel for wheel in references}
    entries = sorted(
        [*entries, *(wheel.entry for wheel in referred.values())],
        key=lambda entry: (entry.name, entry.version, entry.file),
    )
    variants = sorted({entry.version.local for entry in entries if entry.version.local})
    _refuse_colliding_labels(variants, entries)
    reasons = {entry.file: yank_reason(yanked, entry) for entry in entries}

    def links(chosen: Iterable[IndexEntry], folder: str) -> list[PageLink]:
        """Return the links to some wheels on a page in the folder `folder` of the index."""
        page_links = []
        for entry in chosen:
            if entry.file in referred:
                page_links.append(_reference_link(referred[entry.file], reasons[entry.file]))
                continue
            link = PageLink(
                entry,
                url=url_of(entry, folder),
                yanked=reasons[entry.file],
                metadata=metadata,
                documents=documents[entry.file],
            )
            page_links.append(link)
        return page_links

    # They lie in the index, wherever the wheels are: a few hundred bytes for each variant.
    variants_files = compose_variants_files(entries)

    def variants_links(chosen: Iterable[IndexEntry], folder: str) -> list[VariantsLink]:
        """Return the links to the metadata of variants among some wheels, as `links` does."""
        releases = dict.fromkeys((entry.name, entry.version) for entry in chosen)
        page_links = []
        for release in releases:
            if release in variants_files:
                file = variants_files[release]
                url = quote(posixpath.relpath(file.place, folder or "."))
                page_links.append(VariantsLink(file, url))
        return page_links

    project_pages: dict[str, str] = {file.place: file.text for file in variants_files.values()}
    list_pages: dict[str, str] = {}
    for variant in ("", *variants):
        included = [
            entry for entry in entries if variant in {"", entry.version.local} or entry.everywhere
        ]
        names = list(dict.fromkeys(entry.name for entry in included))
        for name in names:
            folder = posixpath.join(variant, name)
            of_project = [entry for entry in included if entry.name == name]
            page_links = links(of_project, folder)
            metadata_links = variants_links(of_project, folder)
            project_pages[f"{folder}/{HTML}"] = _html(
                f"Links for {name}", links=page_links, metadata_links=metadata_links
            )
            project_pages[f"{folder}/{JSON}"] = _project_json(name, page_links, metadata_links)
        sub_indexes = [] if variant else variants
        list_pages[posixpath.join(variant, HTML)] = _html(
            "Simple index", projects=names, variants=sub_indexes
        )
        list_pages[posixpath.join(variant, JSON)] = _list_json(names)
        list_pages[posixpath.join(variant, FLAT)] = _html(
            "Wheels",
            links=links(included, variant),
            metadata_links=variants_links(included, variant),
        )
    return project_pages | list_pages


def _reference_link(wheel: ReferredWheel, yanked: str | None) -> PageLink:
    """Return the link to a wheel at another index."""
    return PageLink(
        wheel.entry,
        url=wheel.url,
        yanked=yanked,
        metadata=wheel.metadata,
        documents={},
        foreign_provenance=wheel.provenance,
    )


def _refuse_colliding_labels(variants: Iterable[str], entries: Iterable[IndexEntry]) -> None:
    """Raise DeliveryError for a label whose folder would have the name of a project or a page.

    Of the pages, only HTML can be a label: labels have no underscores (PEP 440).
    """
    names = {entry.name for entry in entries}
    for variant in variants:
        if variant in names or variant == HTML:
            kind = "project" if variant in names else "page"
            raise DeliveryError(
                f"+{variant}: the label of a version cannot be the name of a {kind} of the same "
                "index: build it with another label, or index it by itself (--dist, --out)",
                code="label-collides",
            )


def _html(title: str, **lists: Sequence[object]) -> str:
    """Return a page with lists of `links`, `metadata_links`, `projects` or `variants`."""
    from torchmill.deliver.templates import fill_template

    empty = {"links": (), "metadata_links": (), "projects": (), "variants": ()}
    values = {**empty, "documents": LINKED, **lists}
    return fill_template("page.html.jinja", api=API, title=title, **values)


def _list_json(names: Iterable[str]) -> str:
    """Return the JSON page that lists the projects of an index."""
    projects = [{"name": name} for name in names]
    return json.dumps({"meta": {"api-version": API}, "projects": projects}, indent=1) + "\n"


def _project_json(
    name: str, links: Sequence[PageLink], metadata_links: Sequence[VariantsLink]
) -> str:
    """Return the JSON page of a project."""
    versions = sorted({link.entry.version for link in links})
    data = {
        "meta": {"api-version": API},
        "name": name,
        "versions": [str(version) for version in versions],
        "files": [_file_fields(link) for link in links] + [link.fields for link in metadata_links],
    }
    return json.dumps(data, indent=1) + "\n"


def _file_fields(link: PageLink) -> dict[str, Any]:
    """Return the fields of a wheel on the JSON page of its project."""
    entry = link.entry
    # In JSON, a yanked file has the reason, or true without one.
    yanked: bool | str = False
    if link.yanked is not None:
        yanked = link.yanked or True
    fields: dict[str, Any] = {
        "filename": entry.file,
        "url": link.url,
        "hashes": {"sha256": entry.sha256},
        "size": entry.size,
        "upload-time": entry.uploaded,
        "yanked": yanked,
    }
    if entry.requires_python:
        fields["requires-python"] = entry.requires_python
    if link.metadata:
        # Not also under its old name: pip 22.3 to 23.1 ends with a traceback on that (PEP 714).
        fields["core-metadata"] = {"sha256": entry.metadata_sha256}
    if link.provenance:
        fields["provenance"] = link.provenance
    for suffix, name in LINKED.items():
        if suffix in link.documents:
            # The standard leaves names that begin with "_" to each index.
            fields[f"_{name}"] = {"url": link.url + suffix, "sha256": link.documents[suffix]}
    return fields
