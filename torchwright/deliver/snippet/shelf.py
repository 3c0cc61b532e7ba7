"""Reading what is on offer: a folder of wheels, the folder of an index, or an index on the network."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit, urlunsplit
from urllib.request import url2pathname

from torchwright.deliver import distributions
from torchwright.deliver.index import agreement, entry
from torchwright.deliver.snippet import offers
from torchwright.deliver.snippet.offers import FLAT, INDEX, Place
from torchwright.deliver.snippet.words import Stock
from torchwright.errors import DeliveryError, NetworkError
from torchwright.layout import Layout
from torchwright.model import Facts

if TYPE_CHECKING:
    import requests

    from torchwright.upstream.index import File

NAME = "torchwright"  # how a project calls the place
ABSENT = 404


def stock(facts: Facts, layout: Layout, index: str) -> Stock:
    """Return what an index (a URL or a folder) or, without one, dist/ has to offer.

    Raises DeliveryError where there is nothing, NetworkError where no index answers.
    """
    if urlsplit(index).scheme in {"http", "https"}:
        return _served(facts, index)
    path = url2pathname(urlsplit(index).path) if index.startswith("file:") else index
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
    from torchwright.upstream.index import listed  # noqa: PLC0415 - brings requests

    return listed(page.read_text("utf-8"), page.as_uri())


def _served(facts: Facts, index: str) -> Stock:
    import requests  # noqa: PLC0415 - slow to import

    url = index.rstrip("/")
    with requests.Session() as session:
        files = tuple(file for package in facts.packages for file in _asked(session, url, package))
    shown = _without_login(url)
    if not files:
        raise DeliveryError(
            f"--index {shown}: it has no page of {' or '.join(facts.packages)}: name the address above those"
        )
    return Stock(shown, Place(NAME, shown, INDEX), offers.from_pages(facts, files))


def _asked(session: requests.Session, url: str, package: str) -> Iterator[File]:
    """Yield the files of a project, none where the index does not have it. Raises NetworkError."""
    import requests  # noqa: PLC0415 - is loaded already

    from torchwright.upstream.index import PATIENCE, listed  # noqa: PLC0415 - brings requests

    shown = _without_login(url)
    try:
        response = session.get(f"{url}/{package}/", headers={"Accept": "text/html"}, timeout=PATIENCE)
        if response.status_code == ABSENT:
            return
        response.raise_for_status()
    except requests.RequestException as error:
        why = f"it answers {error.response.status_code}" if error.response is not None else "no connection"
        raise NetworkError(
            f"--index {shown} cannot be read ({why}): check the address, or serve it"
        ) from None
    yield from listed(response.text, _without_login(response.url))


def _without_login(url: str) -> str:
    """Return an address without a name and a password, which do not belong into a file."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
