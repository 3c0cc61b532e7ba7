"""Wheels that were built elsewhere: one that a cell would make just so is taken instead of built.

Without TORCHMILL_KEYS, trust is that of a shared cache: who may write to a place may offer any wheel that is sound
in itself. With it, one of these keys must have signed the wheel, its manifest, its statement and its SBOM.
"""

import contextlib
import operator
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

import requests
from packaging.utils import canonicalize_name

from torchmill.cell.context import BuildContext, hold_cell
from torchmill.cell.up_to_date import STAGES, StageLog, parse_records
from torchmill.config.model import Plan
from torchmill.core import urls
from torchmill.core.console import show_progress
from torchmill.core.errors import ConfigError, DeliveryError, TorchmillError
from torchmill.core.files import parse_json_object, read_document
from torchmill.core.units import first_problems
from torchmill.deliver import signature
from torchmill.deliver.agreement import DOCUMENT_ERRORS, examine_wheel
from torchmill.deliver.publish.bucket import BucketTarget
from torchmill.deliver.publish.github import GithubApi
from torchmill.deliver.publish.targets import BUCKET, GITHUB, SCHEME
from torchmill.deliver.signature import Signers
from torchmill.fetch.download import describe_http_error, download_file, http_session, read_body
from torchmill.fetch.package_index import READ_ERRORS, find_project_files, parse_html_page
from torchmill.wheel import dist_files

VARIABLE = "TORCHMILL_WHEELS"  # places, with spaces between them
FORMS = (
    "a folder, file:///FOLDER, an index (https://…), one of its pages (https://….html), s3://BUCKET[/PREFIX] or "
    "github:OWNER/NAME[@TAG]"
)
_BUILT = "the cell is built"
_WHEEL = re.compile(r"[\w.+!-]+\.whl", re.ASCII)  # no path, and nothing that steers a terminal
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Offer:
    """A wheel of some place, not yet looked at; its manifest and documents lie beside it."""

    name: str  # of its file
    locate: Callable[[str], str]  # suffix of a file beside it -> URL, or path
    local: bool = False  # it has paths


def parse_places(text: str) -> list[str]:
    """Return the places that the setting names, in its order. Raises ConfigError for what is none."""
    places = text.split()
    for place in places:
        scheme = place.partition(":")[0].lower() if SCHEME.match(place) else ""
        if scheme in {"http", "https", "file"}:
            no_login = "leave user and password out, and write them to ~/.netrc"
            urls.validate_url(VARIABLE, place, (scheme,), f"{scheme}://…", no_login)
        elif scheme and not (BUCKET.fullmatch(place) or GITHUB.fullmatch(place)):
            raise ConfigError(
                f"{VARIABLE}: {urls.redact_url(place)}: give {FORMS}", code="invalid-wheels-setting"
            )
    return places


def take_wheel(context: BuildContext, note: Callable[[str], None]) -> bool:
    """Tell whether a place of TORCHMILL_WHEELS had the wheel of a cell, which is in dist/ then.

    It must have been made of all that the cell would make it of, agree with its manifest, statement and SBOM, and be
    signed by a key of TORCHMILL_KEYS, if that is set. What is not taken is noted with the reason.
    Raises ConfigError for a wrong setting or key, BusyError.
    """
    places = parse_places(os.environ.get(VARIABLE, ""))
    if not places:
        return False
    signers = signature.read_trusted_keys(os.environ)
    with hold_cell(context):
        for place in places:
            try:
                if not (offers := list(_list_offers(place, context.plan))):
                    note(urls.hide_password(f"{place} lists no wheel for this cell"))
                for offer in offers:
                    if why := _why_refused(context, offer, signers):
                        note(f"{offer.name} of {place} is not taken: {why}")
                    else:
                        note(f"{offer.name} is taken from {place}: nothing is compiled")
                        return True
            except (
                TorchmillError,
                *READ_ERRORS,
                *DOCUMENT_ERRORS,
            ) as error:  # whatever a place answers
                said = (
                    str(error) if isinstance(error, TorchmillError) else describe_http_error(error)
                )
                asked = urlsplit(
                    getattr(getattr(error, "response", None), "url", "")
                ).path.rpartition("/")[2]
                note(
                    urls.hide_password(
                        f"{place} is left out: {said}{f', asked for {asked}' if asked else ''}"
                    )
                )
    return False


def _why_refused(context: BuildContext, offer: Offer, signers: Signers) -> str:
    """Take a wheel that is just what the cell would make; return why it is not, "" where it was taken."""
    try:
        raw = _read(offer, dist_files.MANIFEST_SUFFIX)
        manifest = parse_json_object(raw)
        if why := manifest_difference(context, offer.name, manifest):
            return why
    except FileNotFoundError:
        return "there is no manifest beside it (`invoke publish --manifest`, `invoke index --manifest`)"
    except DOCUMENT_ERRORS as error:
        return f"its manifest cannot be understood ({error})"
    # a device has 0 bytes, and no end
    if offer.local and (size := Path(offer.locate("")).stat().st_size) != manifest["size"]:
        return f"it has {size} bytes, and its manifest says {manifest['size']}"
    wheel = _fetch(offer, context.outputs.offers, manifest)
    dist_files.manifest_path(wheel).write_bytes(raw)
    documents = {}
    for suffix in (*dist_files.DOCUMENT_SUFFIXES, *dist_files.SIGNATURE_SUFFIXES):
        with contextlib.suppress(FileNotFoundError):  # is a problem
            documents[suffix] = _read(offer, suffix)
            dist_files.document_path(wheel, suffix).write_bytes(documents[suffix])
    verdict = signature.add_check(examine_wheel(wheel), signers)
    if not verdict.problems:
        dist_files.publish_wheel(
            wheel, context.layout.dist / offer.name, manifest, context.wheel, documents
        )
    shutil.rmtree(context.outputs.offers)
    return first_problems(verdict.problems)


def manifest_difference(context: BuildContext, name: str, manifest: Mapping[str, object]) -> str:
    """Return in what a manifest is not that of the very wheel that a cell would make; "" where it is."""
    plan = context.plan
    expected = {
        "wheel": name,
        "planned": plan.wheel,
        "identifier": plan.identifier,
        "package": plan.build.package,
    }
    if other := [key for key, value in expected.items() if manifest.get(key) != value]:
        return f"its manifest differs in {', '.join(other)}"
    log = StageLog(context, parse_records(manifest))
    if len(log.recorded) < len(STAGES):
        return "its manifest does not say what it was made of"
    if len(log.valid) < len(STAGES):
        return f"{log.why} compared with what the cell would be built from here"
    made = log.valid["verify"].made
    one = log.valid["pack"].made == made == manifest.get("sha256") and _SHA256.fullmatch(made)
    return (
        ""
        if one and isinstance(manifest.get("size"), int)
        else "its manifest does not name one wheel"
    )


def _list_offers(place: str, plan: Plan) -> Iterator[Offer]:
    """Yield the wheels of a place that have the name of a plan's. Raises TorchmillError, READ_ERRORS."""
    stem = plan.wheel.removesuffix(f"{plan.platform_tag}.whl") if plan.computed else plan.wheel
    for offer in _all_offers(place, canonicalize_name(plan.wheel.partition("-")[0])):
        if offer.name.startswith(stem) and _WHEEL.fullmatch(offer.name):
            yield offer


def _all_offers(place: str, project: str) -> Iterable[Offer]:
    if match := GITHUB.fullmatch(place):
        return _of_releases(match["repository"], match["tag"])
    if match := BUCKET.fullmatch(place):
        bucket = BucketTarget.from_address(match["bucket"], match["path"] or "")
        return [
            Offer(key.rpartition("/")[2], partial(bucket.signed_url, key))
            for key in bucket.list_keys()
        ]
    if not place.startswith(("http:", "https:")):
        folder = Path(url2pathname(urlsplit(place).path) if place.startswith("file:") else place)
        if not folder.is_dir():
            raise DeliveryError("it is not a folder", code="no-such-folder")
        # an index has one folder for each variant
        wheels = (path for pattern in ("*.whl", "*/*.whl") for path in sorted(folder.glob(pattern)))
        return (Offer(path.name, partial(operator.add, str(path)), local=True) for path in wheels)
    with http_session() as session:
        if place.endswith(".html"):
            response, body = read_body(session, place, {})
            found = parse_html_page(body.decode("utf-8", "replace"), response.url)
        else:
            found = (
                find_project_files(session, place, project, "check the address, or try again later")
                or ()
            )
    return [Offer(file.name, partial(operator.add, file.url)) for file in found if not file.yanked]


def _of_releases(repository: str, tag: str | None) -> Iterator[Offer]:
    """Yield the files of a public repository's releases (https://docs.github.com/rest/releases/releases)."""
    missing = "it answers 404: there is no such public repository"
    releases = GithubApi.from_environment(os.environ).pages(
        f"/repos/{repository}/releases", missing
    )
    try:
        found = [one for one in releases if tag in {None, one["tag_name"]}]
        if tag and not found:
            raise DeliveryError(f"it has no release {tag}", code="no-repository")
        for asset in (asset for one in found for asset in one["assets"]):
            yield Offer(asset["name"], partial(operator.add, asset["browser_download_url"]))
    except (KeyError, TypeError):
        raise DeliveryError(
            "it does not answer as GitHub does: check GITHUB_API_URL", code="not-github"
        ) from None


def _read(offer: Offer, suffix: str) -> bytes:
    """Return a file beside a wheel. Raises FileNotFoundError where there is none, NetworkError, READ_ERRORS."""
    where = offer.locate(suffix)
    if offer.local:
        return read_document(Path(where))
    try:
        with http_session() as session:
            return read_body(session, where, {})[1]
    except requests.HTTPError as error:
        if error.response.status_code in {requests.codes.not_found, requests.codes.forbidden}:
            raise FileNotFoundError(where) from None  # S3 answers 403 to who may not list
        raise


def _fetch(offer: Offer, folder: Path, manifest: Mapping[str, Any]) -> Path:
    """Return the wheel that a manifest describes in a folder of offers; a download that broke off is gone on with.

    Raises SourceError for another size or digest, NetworkError, HostError for a full disk, OSError.
    """
    sha256 = manifest["sha256"]
    where, folder = offer.locate(""), folder / sha256
    wheel = folder / offer.name
    folder.mkdir(parents=True, exist_ok=True)
    if offer.local:
        return Path(shutil.copyfile(where, wheel))
    refused = f"it is not available, and {_BUILT}"
    with show_progress() as display:
        got = download_file(
            where,
            folder,
            display.task(offer.name),
            network_hint=_BUILT,
            refusal_hint=refused,
            sha256=sha256,
            size=manifest["size"],
        )
    return got.rename(wheel)
