"""`invoke index`: write a static index of dist/, or a conda channel."""

import os
import posixpath
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from urllib.parse import quote

from millpress import wheel_file

from torchmill.commands import index_variants
from torchmill.commands.command import CommandOutput
from torchmill.commands.index_variants import VariantWork
from torchmill.commands.slim import named_capabilities
from torchmill.config.facts import Facts
from torchmill.core import locks, urls
from torchmill.core.errors import ConfigError, DeliveryError, require_choice
from torchmill.core.paths import Layout
from torchmill.core.units import first_problems, name_few
from torchmill.deliver import retention
from torchmill.deliver.agreement import MAX_NOTES
from torchmill.deliver.index import folder, pages, yanks
from torchmill.deliver.index.entries import (
    IndexEntry,
    ReferredWheel,
    requirement_differences,
)
from torchmill.deliver.index.folder import COPY, LINK, STAY, IndexContents, IndexOutcome
from torchmill.deliver.index.scan import ScannedWheel, read_companions, scan_wheels
from torchmill.deliver.index.state import STATE_FOLDER, IndexState, load_state
from torchmill.deliver.index.variant_files import require_fallbacks
from torchmill.wheel import dist_files, finished_wheel

_PLACEHOLDER = re.compile(r"\{(.*?)\}")  # in --base-url: "https://host/{tag}"
PLACEHOLDERS = ("package", "version", "tag")
# The contents of the files beside a wheel (manifest, statement, SBOM, signatures): by the wheel's
# file name, then by suffix.
Companions = Mapping[str, Mapping[str, bytes]]


def write_index(
    facts: Facts,
    layout: Layout,
    *,
    dist: list[str] | None = None,
    out: str = "",
    files: str = LINK,
    base_url: str = "",
    yank: list[str] | None = None,
    unyank: list[str] | None = None,
    reason: str = "",
    replace: list[str] | None = None,
    manifest: bool = False,
    keep: str = "",
    conda: bool = False,
    variants: bool = False,
    gpu: list[str] | None = None,
    arch_list: str = "",
    official: list[str] | None = None,
) -> CommandOutput:
    """Write a static index of the wheels in dist/, or with `conda` a channel of packages.

    With `variants`, wheel variants are in it: those for the GPUs in `gpu` and `arch_list`, for
    processors, and null variants are made first. Without it, variants are left out. Raises
    ConfigError for options that do not go together, DeliveryError for a folder without wheels.
    """
    if conda:
        other_options = (dist, base_url, yank, unyank, reason, replace, manifest, keep)
        variant_options = (variants, gpu, arch_list, official)
        if any(other_options) or any(variant_options) or files != LINK:
            raise ConfigError(
                "--conda writes a channel of conda packages: of the other options it takes only "
                "--out and --json",
                code="contradictory-options",
            )
        return _write_channel(facts, layout, out)
    require_choice("--files", files, (LINK, COPY, STAY), "unknown-files")
    target = _absolute(out) if out else layout.index
    dists = [_absolute(path) for path in dist or ()] or [layout.dist]
    replaced = [yanks.parse_yanked_version("--replace", text) for text in replace or ()]
    change = yanks.parse_yank_options(yank or (), unyank or (), reason)
    pins = [yanks.parse_yanked_version("--official", text) for text in official or ()]
    base_url = _parse_base_url(base_url)
    most = retention.parse_keep(keep)  # how many of the newest releases to list; 0: all
    folder.require_index_folder(target)
    _require_wheels(dists)
    work = index_variants.leave_out_variants(dists)
    if variants:
        capabilities = named_capabilities(facts, layout, arch_list, gpu or ())
        work = index_variants.make_variants(facts, dists, capabilities)
    elif gpu or arch_list:
        raise ConfigError(
            "--gpu and --arch-list name the GPUs of --variants: give it too",
            code="contradictory-options",
        )
    else:
        _require_plain_wheels(dists, work.left_out)
    references = _read_references(pins)
    with locks.hold_work_folder(target / STATE_FOLDER, str(target)):
        before = load_state(target) or IndexState()  # as the last run has left it
        scanned = scan_wheels(dists, before.wheels, replaced, work.left_out, work.written)
        entries = _join_entries(scanned, references)
        require_fallbacks(entries)
        yanked = yanks.apply_yanks(before.yanked, change, entries)
        withdrawn = [
            entry.file for entry in entries if yanks.yank_reason(yanked, entry) is not None
        ]
        older = retention.older_wheels((entry.file for entry in entries), most, withdrawn)
        wheels = [wheel for wheel in scanned if wheel.entry.file not in older]
        references = [wheel for wheel in references if wheel.entry.file not in older]
        companions = {
            wheel.entry.file: read_companions(wheel, manifest=manifest) for wheel in wheels
        }
        contents = IndexContents(
            _compute_pages(wheels, yanked, files, base_url, target, companions, references),
            () if files == STAY else tuple(wheels),
            IndexState({}, {wheel.entry.file: wheel.remembered for wheel in scanned}, yanked),
            companions,
        )
        outcome = folder.write_folder(target, contents, before, files)
    return _report_index(target, wheels, outcome, older, most, work, references)


def _read_references(pins: Sequence[str]) -> list[ReferredWheel]:
    """Return the official wheels of some versions, at the index that pip uses."""
    if not pins:
        return []
    from torchmill.deliver.index.references import read_references
    from torchmill.fetch.download import http_session
    from torchmill.fetch.package_index import configured_index

    with http_session() as session:
        return read_references(session, configured_index(), pins)


def _join_entries(
    scanned: Sequence[ScannedWheel], references: Sequence[ReferredWheel]
) -> list[IndexEntry]:
    """Return the entries of scanned wheels, then of those that are referred to.

    Raises DeliveryError for a wheel that is in both.
    """
    names = {wheel.entry.file for wheel in scanned}
    doubles = sorted(names.intersection(wheel.entry.file for wheel in references))
    if doubles:
        raise DeliveryError(
            f"{doubles[0]}: is in dist/, and --official refers to it: leave out one of them",
            code="same-wheel-twice",
        )
    entries = [wheel.entry for wheel in scanned]
    entries += [wheel.entry for wheel in references]
    return entries


def _write_channel(facts: Facts, layout: Layout, out: str) -> CommandOutput:
    """Write a channel of the conda packages in dist/."""
    from torchmill.deliver.conda import channel

    target = _absolute(out) if out else layout.channel
    return CommandOutput(channel.write_channel(facts, layout, target), {"channel": str(target)})


def _require_wheels(folders: Sequence[Path]) -> None:
    """Raise DeliveryError for a folder without wheels: an index of nothing would remove all."""
    for path in folders:
        if not wheel_file.list_wheels(path):
            raise DeliveryError(
                f"{path}: holds no wheels: build one (`nox -l`), or name another folder with "
                "--dist",
                code="no-wheels",
            )


def _require_plain_wheels(folders: Sequence[Path], left_out: Collection[str]) -> None:
    """Raise DeliveryError if the names `left_out` are all wheels: see `_require_wheels`."""
    for path in folders:
        if any(wheel.name not in left_out for wheel in wheel_file.list_wheels(path)):
            return
    raise DeliveryError(
        f"{', '.join(map(str, folders))}: all wheels are variants, which are left out: give "
        "--variants, or name a folder with plain wheels by --dist",
        code="no-wheels",
    )


def _report_index(  # noqa: PLR0917
    target: Path,
    wheels: Sequence[ScannedWheel],
    outcome: IndexOutcome,
    older: Sequence[str],
    most: int,
    work: VariantWork,
    references: Sequence[ReferredWheel],
) -> CommandOutput:
    """Return the outcome of an index as output; `older` are wheels beyond the newest `most`."""
    entries = [wheel.entry for wheel in wheels]
    warnings = []
    for wheel in wheels:
        if wheel.notes:
            warnings.append(f"{wheel.path.name}: {first_problems(wheel.notes, MAX_NOTES)}")
    warnings += requirement_differences(entries)
    variants = {entry.version.local for entry in entries if entry.version.local}
    warnings += work.notes
    costs = index_variants.variant_costs(entries)
    data = {
        **asdict(outcome),
        "index": str(target),
        "wheels": [entry.file for entry in entries],
        "older": older,
        "variants": sorted(variants),
        "warnings": warnings,
    }
    if costs:
        data["wheel_variants"] = [asdict(cost) for cost in costs]
    notes = [f"  left out, not of the newest {most}: {file}" for file in older]
    notes += [f"warning: {warning}" for warning in warnings]
    if references:
        notes.append(f"  {len(references)} official wheels by reference, which clients fetch there")
    notes += index_variants.report_lines(work, costs)
    return CommandOutput("\n".join(_report_lines(target, entries, outcome, notes)), data)


def _report_lines(
    target: Path, entries: Sequence[IndexEntry], outcome: IndexOutcome, notes: Sequence[str]
) -> Iterator[str]:
    """Yield lines on the outcome of an index, and commands that install the last of its wheels."""
    names = ", ".join(dict.fromkeys(entry.name for entry in entries))
    work = "nothing had to be written"
    if outcome.written or outcome.removed:
        work = f"{len(outcome.written)} files written, {len(outcome.removed)} removed"
    plural = "" if len(entries) == 1 else "s"
    wheels = f"{len(entries)} wheel{plural} of {names}" if entries else "no wheels of its own"
    yield f"{target}: {wheels}; {work}"
    if outcome.foreign:
        yield f"  not the index's, and left alone: {name_few(outcome.foreign)}"
    yield from notes
    if not entries:
        return
    example = entries[-1]
    local = example.version.local
    index = f"{target.as_uri()}/"
    # Below the index of everything, each variant has its own: "cu118/". That of an extension,
    # "cu130.torch2.11.0/", does not have its torch, so that a user needs the index of everything.
    if local and "." not in local:
        index = f"{index}{local}/"
    pin = f"{example.name}=={example.version}"
    yield f"  pip install --extra-index-url {index} {pin}"
    yield f"  uv pip install --index {index} {pin}"


def _absolute(path: str) -> Path:
    """Return the absolute path of a path; links are not followed, and `..` is taken out as text."""
    return Path(os.path.abspath(path))  # noqa: PTH100 - pathlib's absolute() leaves `..` in it


def _compute_pages(  # noqa: PLR0917
    wheels: Sequence[ScannedWheel],
    yanked: dict[str, str],
    files: str,
    base_url: str,
    target: Path,
    companions: Companions,
    references: Sequence[ReferredWheel],
) -> dict[str, str]:
    """Return the pages of an index by their path in its folder `target`.

    `files` is --files: wheels are linked or copied into the folder, or stay outside. `base_url` is
    --base-url, or "" for relative links.
    """
    digests = {}
    for file, contents in companions.items():
        digests[file] = {suffix: sha256(data).hexdigest() for suffix, data in contents.items()}
    paths = {wheel.entry.file: wheel.path for wheel in wheels}
    filled_urls = {wheel.entry.file: _fill_base_url(base_url, wheel) for wheel in wheels}

    def link(entry: IndexEntry, page_folder: str) -> str:
        """Return the address of a wheel from a page in a folder of the index."""
        if base_url:
            place = entry.file if files == STAY else entry.place
            return f"{filled_urls[entry.file]}/{quote(place)}"
        if files == STAY:
            return quote(os.path.relpath(paths[entry.file], target / page_folder))
        return quote(posixpath.relpath(entry.place, page_folder or "."))

    return pages.compute_pages(
        [wheel.entry for wheel in wheels],
        yanked,
        link,
        digests,
        metadata=files != STAY,
        references=references,
    )


def _fill_base_url(base_url: str, wheel: ScannedWheel) -> str:
    """Return --base-url with a wheel's values for its placeholders."""
    version = wheel.entry.version
    # The tag is in the manifest alone, which is read only if it is needed.
    manifest = {}
    if "{tag}" in base_url:
        manifest = dist_files.read_manifest(wheel.path)
    values = {
        "package": wheel.entry.name,
        "version": version.public,
        "tag": finished_wheel.source_tag(version, manifest),
    }
    return _PLACEHOLDER.sub(lambda match: quote(values[match[1]]), base_url)


def _parse_base_url(url: str) -> str:
    """Return the value of --base-url, with its placeholders, without a slash at the end.

    "", for relative links, stays as it is. Raises ConfigError for an unknown placeholder, and for
    another text that is no address.
    """
    if not url:
        return ""
    for name in _PLACEHOLDER.findall(url):
        require_choice("placeholder of --base-url", name, PLACEHOLDERS, "unknown-placeholder")
    urls.validate_url(
        "--base-url",
        _PLACEHOLDER.sub("x", url),
        ("https", "http", "file"),
        "https://wheels.example/whl",
        no_login="every page would show the password in it: leave user and password out",
    )
    return url.rstrip("/")
