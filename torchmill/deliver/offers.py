"""Wheels that were built elsewhere: a cell takes such a wheel instead of building it.

The variable TORCHMILL_WHEELS lists places, such as folders and indexes, and each wheel in them is
an offer.

The wheel must be the same that the cell would make. Without TORCHMILL_KEYS, a place is trusted like
a shared cache: whoever may write to it may offer any wheel that is sound in itself. With
TORCHMILL_KEYS, one of these keys must have signed the wheel, its manifest, its statement and its
SBOM.
"""

import contextlib
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
from millpress import file_names
from millpress.errors import MillpressError
from packaging.utils import canonicalize_name

from torchmill.cell.context import BuildContext, hold_cell
from torchmill.cell.up_to_date import STAGES, StageLog, parse_records
from torchmill.core import urls
from torchmill.core.console import show_progress
from torchmill.core.errors import ConfigError, DeliveryError, TorchmillError
from torchmill.core.strict_json import parse_json_object, read_document
from torchmill.core.units import first_problems
from torchmill.deliver import signature
from torchmill.deliver.agreement import DOCUMENT_ERRORS, examine_wheel
from torchmill.deliver.publish.bucket import BucketTarget
from torchmill.deliver.publish.github import GithubApi
from torchmill.deliver.publish.targets import BUCKET, GITHUB, SCHEME
from torchmill.deliver.signature import Signers
from torchmill.fetch.download import download_file, http_session, read_body
from torchmill.fetch.http_failures import describe_http_error
from torchmill.fetch.package_index import READ_ERRORS, find_project_files, parse_html_page
from torchmill.plan.plan import Plan
from torchmill.wheel import dist_files

VARIABLE = "TORCHMILL_WHEELS"  # a list of places, separated by spaces
FORMS = (
    "a folder, file:///FOLDER, an index (https://…), one of its pages (https://….html), "
    "s3://BUCKET[/PREFIX] or github:OWNER/NAME[@TAG]"
)

# Ends the messages about places that do not answer: nothing is lost then.
_FALLBACK = "the cell is built"

# A name from elsewhere becomes the name of a file, and is printed: it must hold no path, and
# nothing that steers a terminal.
_WHEEL = re.compile(r"[\w.+!-]+\.whl", re.ASCII)
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Offer:
    """A wheel in some place, not examined yet, and the documents beside it."""

    name: str  # of the wheel's file
    # Returns the URL of the document with a suffix, or of the wheel for ""; a path if `local`.
    locate: Callable[[str], str]
    local: bool = False


def parse_places(text: str) -> list[str]:
    """Return the places that TORCHMILL_WHEELS lists, separated by spaces, in its order.

    Raises ConfigError for a place of an unknown form, or one with a password in it.
    """
    places = text.split()
    for place in places:
        scheme = place.partition(":")[0].lower() if SCHEME.match(place) else ""
        if scheme in {"http", "https", "file"}:
            no_login = "leave user and password out, and write them to ~/.netrc"
            urls.validate_url(VARIABLE, place, (scheme,), f"{scheme}://…", no_login=no_login)
        elif scheme and not (BUCKET.fullmatch(place) or GITHUB.fullmatch(place)):
            raise ConfigError(
                f"{VARIABLE}: {urls.redact_url(place)}: give {FORMS}", code="invalid-wheels-setting"
            )
    return places


def take_wheel(context: BuildContext, note: Callable[[str], None]) -> bool:
    """Put the wheel of a cell into dist/ if a place of TORCHMILL_WHEELS has it; tell if so.

    The wheel must have been made of everything that the cell would make it of, agree with its
    manifest, statement and SBOM, and be signed by a key of TORCHMILL_KEYS, if that is set. `note`
    receives a line for each wheel and each place that is not used, with the reason. Raises
    ConfigError for a wrong setting or key, BusyError if another run has the cell.
    """
    places = parse_places(os.environ.get(VARIABLE, ""))
    if not places:
        return False
    signers = signature.read_trusted_keys(os.environ)
    with hold_cell(context):
        for place in places:
            # A place may answer anything: whatever goes wrong there, the next one is tried, and in
            # the end the cell is built.
            try:
                if _take_from_place(context, place, signers, note):
                    return True
            except (TorchmillError, MillpressError) as error:
                note(_describe_failure(place, str(error), error))
            except (*READ_ERRORS, *DOCUMENT_ERRORS) as error:
                note(_describe_failure(place, describe_http_error(error), error))
    return False


def _take_from_place(
    context: BuildContext, place: str, signers: Signers, note: Callable[[str], None]
) -> bool:
    """Put the wheel of a cell into dist/ if a place has it; tell if so."""
    offers = list(_list_offers(place, context.plan))
    if not offers:
        note(urls.hide_password(f"{place} lists no wheel for this cell"))
    for offer in offers:
        refusal = _take_offer(context, offer, signers)
        if not refusal:
            note(f"{offer.name} is taken from {place}: nothing is compiled")
            return True
        note(f"{offer.name} of {place} is not taken: {refusal}")
    return False


def _describe_failure(place: str, reason: str, error: Exception) -> str:
    """Return the line about a place that could not be read.

    It names the file that was requested, if the error has a response.
    """
    response = getattr(error, "response", None)
    file = urlsplit(getattr(response, "url", "")).path.rpartition("/")[2]
    if file:
        reason = f"{reason}, asked for {file}"
    return urls.hide_password(f"{place} is left out: {reason}")


def _take_offer(context: BuildContext, offer: Offer, signers: Signers) -> str:
    """Put an offered wheel into dist/ if the cell would make the same wheel.

    Returns "" then, and otherwise the reason why the offer is not taken.
    """
    try:
        manifest_text = _read_companion(offer, dist_files.MANIFEST_SUFFIX)
        manifest = parse_json_object(manifest_text)
        difference = manifest_difference(context, offer.name, manifest)
    except FileNotFoundError:
        commands = "`invoke publish --manifest`, `invoke index --manifest`"
        return f"there is no manifest beside it ({commands})"
    except DOCUMENT_ERRORS as error:
        return f"its manifest cannot be understood ({error})"
    if difference:
        return difference
    if offer.local:
        # The size is compared before anything is copied: a device has 0 bytes, and no end.
        size = Path(offer.locate("")).stat().st_size
        if size != manifest["size"]:
            return f"it has {size} bytes, and its manifest says {manifest['size']}"
    wheel = _fetch_wheel(offer, context.outputs.offers, manifest)
    dist_files.manifest_path(wheel).write_bytes(manifest_text)
    documents = {}
    for suffix in (*dist_files.DOCUMENT_SUFFIXES, *dist_files.SIGNATURE_SUFFIXES):
        # `examine_wheel` reports a missing statement or SBOM, `add_check` a missing signature.
        with contextlib.suppress(FileNotFoundError):
            documents[suffix] = _read_companion(offer, suffix)
            dist_files.document_path(wheel, suffix).write_bytes(documents[suffix])
    verdict = signature.add_check(examine_wheel(wheel), signers)
    if not verdict.problems:
        dist_files.publish_wheel(
            wheel, context.layout.dist / offer.name, manifest, context.wheel, documents
        )
    shutil.rmtree(context.outputs.offers)
    return first_problems(verdict.problems)


def manifest_difference(context: BuildContext, name: str, manifest: Mapping[str, object]) -> str:
    """Return why a manifest is not that of the wheel that a cell would make; "" if it is.

    `name` is the file name of the wheel beside it.
    """
    plan = context.plan
    expected = {
        "wheel": name,
        "planned": plan.wheel.file_name,
        "identifier": plan.identifier,
        "package": plan.build.package,
    }
    different = [key for key, value in expected.items() if manifest.get(key) != value]
    if different:
        return f"its manifest differs in {', '.join(different)}"
    log = StageLog(context, parse_records(manifest))
    if len(log.recorded) < len(STAGES):
        return "its manifest does not say what it was made of"
    if len(log.valid) < len(STAGES):
        return f"{log.reason} compared with what the cell would be built from here"
    # The same wheel must have been packed, verified and offered.
    sha256 = log.valid["verify"].product
    is_same_wheel = log.valid["pack"].product == sha256 == manifest.get("sha256")
    if is_same_wheel and _SHA256.fullmatch(sha256) and isinstance(manifest.get("size"), int):
        return ""
    return "its manifest does not name one wheel"


def _list_offers(place: str, plan: Plan) -> Iterator[Offer]:
    """Yield the wheels in a place that have the name of a plan's wheel.

    If the platform tag is computed from the finished wheel, any platform tag will do. Raises
    TorchmillError, READ_ERRORS.
    """
    stem = plan.wheel.file_name
    if plan.wheel.tag_is_upper_bound:
        stem = plan.wheel.file_name.removesuffix(f"{plan.wheel.platform_tag}.whl")
    project = canonicalize_name(plan.wheel.file_name.partition("-")[0])
    for offer in _all_offers(place, project):
        _, variant = file_names.split_label(offer.name)
        # A wheel variant is not what a cell builds, even if it was made of that.
        if offer.name.startswith(stem) and _WHEEL.fullmatch(offer.name) and not variant:
            yield offer


def _all_offers(place: str, project: str) -> Iterable[Offer]:
    """Return the files that a place has, at least all wheels of a project."""
    github = GITHUB.fullmatch(place)
    if github:
        return _github_offers(github["repository"], github["tag"])
    bucket = BUCKET.fullmatch(place)
    if bucket:
        return _bucket_offers(bucket["bucket"], bucket["path"] or "")
    if place.startswith(("http:", "https:")):
        return _index_offers(place, project)
    folder = place
    if place.startswith("file:"):
        folder = url2pathname(urlsplit(place).path)
    return _folder_offers(Path(folder))


def _suffixed(location: str) -> Callable[[str], str]:
    """Return a function that appends a suffix to a URL or a path."""
    return lambda suffix: location + suffix


def _folder_offers(folder: Path) -> Iterator[Offer]:
    """Yield the wheels in a folder, or in an index that `invoke index` wrote."""
    if not folder.is_dir():
        raise DeliveryError("it is not a folder", code="no-such-folder")
    for pattern in ("*.whl", "*/*.whl"):  # an index has a folder for each variant
        for path in sorted(folder.glob(pattern)):
            yield Offer(path.name, _suffixed(str(path)), local=True)


def _bucket_offers(bucket: str, prefix: str) -> Iterator[Offer]:
    """Yield the objects of a bucket whose keys begin with a prefix."""
    target = BucketTarget.from_address(bucket, prefix)
    for key in target.list_keys():
        yield Offer(key.rpartition("/")[2], partial(target.signed_url, key))


def _index_offers(place: str, project: str) -> Iterator[Offer]:
    """Yield a project's files in an index, or on one of its pages, without yanked files."""
    with http_session() as session:
        if place.endswith(".html"):
            response, body = read_body(session, place, {})
            files = parse_html_page(body.decode("utf-8", "replace"), response.url)
        else:
            hint = "check the address, or try again later"
            files = find_project_files(session, place, project, hint) or ()
    for file in files:
        if not file.yanked:
            yield Offer(file.name, _suffixed(file.url))


def _github_offers(repository: str, tag: str | None) -> Iterator[Offer]:
    """Yield the files of a public repository's releases, or of the release of one tag.

    https://docs.github.com/rest/releases/releases
    """
    api = GithubApi.from_environment(os.environ)
    missing = "it answers 404: there is no such public repository"
    try:
        pages = api.pages(f"/repos/{repository}/releases", missing)
        releases = [release for release in pages if tag in {None, release["tag_name"]}]
        if tag and not releases:
            raise DeliveryError(f"it has no release {tag}", code="no-repository")
        for release in releases:
            for asset in release["assets"]:
                yield Offer(asset["name"], _suffixed(asset["browser_download_url"]))
    except (KeyError, TypeError):
        raise DeliveryError(
            "it does not answer as GitHub does: check GITHUB_API_URL", code="not-github"
        ) from None


def _read_companion(offer: Offer, suffix: str) -> bytes:
    """Return a file beside a wheel, such as its manifest.

    Raises FileNotFoundError if there is none, NetworkError, READ_ERRORS.
    """
    location = offer.locate(suffix)
    if offer.local:
        return read_document(Path(location))
    try:
        with http_session() as session:
            _, body = read_body(session, location, {})
    except requests.HTTPError as error:
        # S3 answers 403 for an object that is missing, if the reader may not list the bucket.
        if error.response.status_code in {requests.codes.not_found, requests.codes.forbidden}:
            raise FileNotFoundError(location) from None
        raise
    return body


def _fetch_wheel(offer: Offer, folder: Path, manifest: Mapping[str, Any]) -> Path:
    """Return the path of a wheel after copying or downloading it; a broken download is resumed.

    It arrives in a folder below `folder` that is named after the digest in its manifest. What is
    downloaded is compared with the manifest, and what is copied is not. Raises SourceError for more
    bytes or another digest, NetworkError, HostError for a full disk, OSError.
    """
    location = offer.locate("")
    destination = folder / manifest["sha256"]
    wheel = destination / offer.name
    destination.mkdir(parents=True, exist_ok=True)
    if offer.local:
        return Path(shutil.copyfile(location, wheel))
    with show_progress() as display:
        download = download_file(
            location,
            destination,
            display.start_bar(offer.name),
            network_hint=_FALLBACK,
            refusal_hint=f"it is not available, and {_FALLBACK}",
            sha256=manifest["sha256"],
            size=manifest["size"],
        )
    return download.rename(wheel)
