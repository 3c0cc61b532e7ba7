"""Reading what is on offer: a folder of wheels, the folder of an index, or an index on the network."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.request import url2pathname

from torchmill import address
from torchmill.deliver import distributions
from torchmill.deliver.index import agreement, entry
from torchmill.deliver.snippet import offers
from torchmill.deliver.snippet.offers import FLAT, INDEX, Place
from torchmill.deliver.snippet.words import Stock
from torchmill.errors import DeliveryError
from torchmill.layout import Layout
from torchmill.model import Facts

if TYPE_CHECKING:
    from torchmill.upstream.index import File

NAME = "torchmill"  # how a project calls the place
EXAMPLE = "https://wheels.example, file:///srv/wheels, or the path of a folder"


def stock(facts: Facts, layout: Layout, index: str) -> Stock:
    """Return what an index (a URL or a folder) or, without one, dist/ has to offer.

    Raises ConfigError for what is no address, DeliveryError where there is nothing, NetworkError where no
    index answers.
    """
    path = index
    if "://" in index or index.startswith("file:"):
        parts = address.checked("--index", index, ("https", "http", "file"), EXAMPLE)
        if parts.scheme != "file":
            return _served(facts, index)
        path = url2pathname(parts.path)
    folder = Path(path).resolve() if index else layout.dist
    if not folder.is_dir():
        raise DeliveryError(_nothing(folder, index, "there is no such folder"))
    pages = [folder / package / "index.html" for package in facts.packages]
    if any(page.is_file() for page in pages):
        files = tuple(file for page in pages if page.is_file() for file in _page(page))
        return Stock(str(folder), Place(NAME, folder.as_uri(), INDEX), offers.from_pages(facts, files))
    ours = (path for path in distributions.files(folder) if distributions.named(path)[0] in facts.packages)
    wheels = distributions.ordered(distributions.read(path) for path in ours)
    found = offers.from_folder(facts, wheels)
    if not found:
        raise DeliveryError(_nothing(folder, index, "there is no wheel of ours in it"))
    warnings = tuple(agreement.differences(entry.of(wheel, "") for wheel in wheels))
    return Stock(str(folder), Place(NAME, folder.as_uri(), FLAT), found, warnings)


def _nothing(folder: Path, index: str, why: str) -> str:
    if index:
        return f"--index {index}: {why}: name a folder of wheels, or what `invoke index` wrote"
    return f"{folder}: {why}: build a wheel (`nox -l` lists the sessions), or name an index with --index"


def _page(page: Path) -> tuple[File, ...]:
    from torchmill.upstream.index import listed  # noqa: PLC0415 - brings requests

    return listed(page.read_text("utf-8", "replace"), page.as_uri())


def _served(facts: Facts, index: str) -> Stock:
    import requests  # noqa: PLC0415 - slow to import

    from torchmill.upstream.index import known  # noqa: PLC0415 - brings requests

    url = address.without_login(index).rstrip("/")
    cure = "check the address of --index, or serve it"
    with requests.Session() as session:
        pages = [known(session, index, package, cure) or () for package in facts.packages]
    files = tuple(replace(one, url=_without_login(one.url)) for page in pages for one in page)
    if not files:
        raise DeliveryError(
            f"--index {url}: it has no page of {' or '.join(facts.packages)}: name the address above those"
        )
    return Stock(url, Place(NAME, url, INDEX), offers.from_pages(facts, files))


def _without_login(url: str) -> str:
    """Return the address of a file as an index tells it, which may be anything, for everybody."""
    try:
        return address.without_login(url)
    except ValueError:
        return url
