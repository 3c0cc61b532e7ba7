"""The pages of the index, as text: HTML (PEP 503) and JSON (PEP 691), each saying the same."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from torchmill.deliver.index.entry import Entry

API = "1.1"  # PEP 700: sizes, versions, times
HTML, JSON = "index.html", "index.v1_json"
FLAT = "torch_stable.html"  # as people know it from the official index; it lists all packages


@dataclass(frozen=True, slots=True)
class Link:
    """A wheel on a page."""

    entry: Entry
    url: str  # of the file, quoted; relative to the page, or absolute
    yanked: str | None  # the reason, which may be empty; None: it is not yanked
    metadata: bool  # whether METADATA lies beside the file (PEP 658)


def project_html(name: str, links: Iterable[Link]) -> str:
    """Return the page of a project."""
    return _html(f"Links for {name}", _anchors(links))


def project_json(name: str, links: Sequence[Link]) -> str:
    """Return the same for programs."""
    versions = sorted({link.entry.version for link in links})
    return _json(
        {
            "meta": {"api-version": API},
            "name": name,
            "versions": [str(version) for version in versions],
            "files": [_file(link) for link in links],
        }
    )


def list_html(names: Iterable[str], variants: Sequence[str]) -> str:
    """Return the page of all projects; variants are only told, for each link would be taken for a project."""
    lines = [f'<a href="{escape(name)}/">{escape(name)}</a><br>' for name in names]
    told = [f"<p>Sub-indexes: {escape(', '.join(variants))}</p>"] if variants else []
    return _html("Simple index", [*lines, *told])


def list_json(names: Iterable[str]) -> str:
    """Return the same for programs."""
    return _json({"meta": {"api-version": API}, "projects": [{"name": name} for name in names]})


def flat(links: Iterable[Link]) -> str:
    """Return a page with all files, for --find-links."""
    return _html("Wheels", _anchors(links))


def _html(title: str, lines: Iterable[str]) -> str:
    head = [
        "<!DOCTYPE html>",
        '<html lang="en">',
        "<head>",
        '<meta charset="utf-8">',
        f'<meta name="pypi:repository-version" content="{API}">',
        f"<title>{escape(title)}</title>",
        "</head>",
        "<body>",
        f"<h1>{escape(title)}</h1>",
    ]
    return "\n".join([*head, *lines, "</body>", "</html>", ""])


def _anchors(links: Iterable[Link]) -> list[str]:
    return [_anchor(link) for link in links]


def _anchor(link: Link) -> str:
    entry = link.entry
    said = {"href": f"{link.url}#sha256={entry.sha256}"}
    if entry.requires_python:
        said["data-requires-python"] = entry.requires_python
    if link.metadata:  # PEP 714: the old name is for who does not know the new one
        said["data-core-metadata"] = said["data-dist-info-metadata"] = f"sha256={entry.metadata_sha256}"
    said["data-upload-time"] = entry.uploaded  # no standard has it in HTML; uv reads it
    if link.yanked is not None:
        said["data-yanked"] = link.yanked
    words = " ".join(f'{name}="{escape(value)}"' for name, value in said.items())
    return f"<a {words}>{escape(entry.file)}</a><br>"


def _file(link: Link) -> dict[str, Any]:
    entry = link.entry
    said: dict[str, Any] = {
        "filename": entry.file,
        "url": link.url,
        "hashes": {"sha256": entry.sha256},
        "size": entry.size,
        "upload-time": entry.uploaded,
        "yanked": False if link.yanked is None else link.yanked or True,
    }
    if entry.requires_python:
        said["requires-python"] = entry.requires_python
    if link.metadata:  # not under its old name: pip 22.3 to 23.1 ends with a traceback on that (PEP 714)
        said["core-metadata"] = {"sha256": entry.metadata_sha256}
    return said


def _json(data: Any) -> str:
    return json.dumps(data, indent=1) + "\n"
