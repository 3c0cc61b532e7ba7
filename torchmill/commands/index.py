"""`invoke index`: write a static index of dist/, or a conda channel."""

import os
import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from urllib.parse import quote

from millpress import wheel_file

from torchmill.commands.command import CommandOutput
from torchmill.config.facts import Facts
from torchmill.core import locks, urls
from torchmill.core.errors import ConfigError, DeliveryError, require_choice
from torchmill.core.paths import Layout
from torchmill.core.units import first_problems, name_few
from torchmill.deliver import retention
from torchmill.deliver.agreement import MAX_NOTES
from torchmill.deliver.index import folder, pages, yanks
from torchmill.deliver.index.entries import IndexEntry, requirement_differences
from torchmill.deliver.index.folder import COPY, LINK, STAY, IndexContents, IndexOutcome
from torchmill.deliver.index.scan import ScannedWheel, read_companions, scan_wheels
from torchmill.deliver.index.state import FOLDER, IndexState, load_state
from torchmill.wheel import dist_files, finished_wheel

PLACEHOLDERS, _PLACEHOLDER = ("package", "version", "tag"), r"\{(.*?)\}"  # of --base-url
Contents = Mapping[
    str, Mapping[str, bytes]
]  # of the files beside a wheel, by its name and their suffixes


def write_index(  # noqa: PLR0917 - every one is an option
    facts: Facts,
    layout: Layout,
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
) -> CommandOutput:
    """Write a static package index of the wheels in dist/."""
    if conda:
        if (
            dist
            or files != LINK
            or base_url
            or yank
            or unyank
            or reason
            or replace
            or manifest
            or keep
        ):
            raise ConfigError(
                "--conda writes a channel of conda packages: of the other options it takes only --out and --json",
                code="contradictory-options",
            )
        from torchmill.deliver.conda import channel

        target = _absolute(out) if out else layout.channel
        return CommandOutput(channel.write_channel(facts, layout, target), {"channel": str(target)})
    require_choice("--files", files, (LINK, COPY, STAY), "unknown-files")
    target = _absolute(out) if out else layout.index
    dists = [_absolute(each) for each in dist or ()] or [layout.dist]
    replaced = [yanks.parse_yanked_version("--replace", each) for each in replace or ()]
    change = yanks.parse_yank_options(yank or (), unyank or (), reason)
    base, most = _base(base_url) if base_url else "", retention.parse_keep(keep)
    folder.require_index_folder(target)
    for each in dists:
        if not wheel_file.list_wheels(each):  # an index of nothing would remove what is there
            raise DeliveryError(
                f"{each}: holds no wheels: build one (`nox -l`), or name another folder with --dist",
                code="no-wheels",
            )
    with locks.hold_lock(target / FOLDER, str(target)):
        before = load_state(target) or IndexState()
        scanned = scan_wheels(dists, before.wheels, replaced)
        yanked = yanks.apply_yanks(before.yanked, change, [one.entry for one in scanned])
        withdrawn = [
            one.entry.file for one in scanned if yanks.yank_reason(yanked, one.entry) is not None
        ]
        older = retention.older_wheels((one.entry.file for one in scanned), most, withdrawn)
        wheels = [one for one in scanned if one.entry.file not in older]
        entries = [one.entry for one in wheels]
        beside = {one.entry.file: read_companions(one, manifest=manifest) for one in wheels}
        written = _pages(wheels, yanked, files, base, target, beside)
        state = IndexState({}, {one.entry.file: one.remembered for one in scanned}, yanked)
        lying = () if files == STAY else wheels
        outcome = folder.write_folder(
            target, IndexContents(written, tuple(lying), state, beside), before, files
        )
    warnings = [
        f"{one.path.name}: {first_problems(one.notes, MAX_NOTES)}" for one in wheels if one.notes
    ]
    warnings += requirement_differences(entries)
    data = asdict(outcome) | {
        "index": str(target),
        "wheels": [one.file for one in entries],
        "older": older,
    }
    data |= {
        "variants": sorted({one.version.local for one in entries if one.version.local}),
        "warnings": warnings,
    }
    notes = [f"  left out, not of the newest {most}: {file}" for file in older]
    notes += [f"warning: {warning}" for warning in warnings]
    return CommandOutput("\n".join(_report(target, entries, outcome, notes)), data)


def _report(
    target: Path, entries: Sequence[IndexEntry], outcome: IndexOutcome, notes: Sequence[str]
) -> Iterator[str]:
    """Yield what the run did, and the lines to try."""
    names, count = ", ".join(dict.fromkeys(one.name for one in entries)), len(entries)
    did = f"{len(outcome.written)} files written, {len(outcome.removed)} removed"
    if not outcome.written and not outcome.removed:
        did = "nothing had to be written"
    yield f"{target}: {count} wheel{'s' * (count != 1)} of {names}; {did}"
    if outcome.foreign:
        yield f"  not the index's, and left alone: {name_few(outcome.foreign)}"
    yield from notes
    last, index = entries[-1], f"{target.as_uri()}/"
    whole = "." in (
        last.version.local or "."
    )  # that of an extension ("cu130.torch2.11.0") is without torch itself
    url, pin = index if whole else f"{index}{last.version.local}/", f"{last.name}=={last.version}"
    yield f"  pip install --extra-index-url {url} {pin}"
    yield f"  uv pip install --index {url} {pin}"


def _absolute(path: str) -> Path:
    """Return a path from the root on, its links as they are."""
    return Path(os.path.abspath(path))  # noqa: PTH100 - pathlib's leaves `..` in it


def _pages(  # noqa: PLR0917
    wheels: Sequence[ScannedWheel],
    yanked: dict[str, str],
    files: str,
    base: str,
    out: Path,
    beside: Contents,
) -> dict[str, str]:
    digests = {
        file: {end: sha256(content).hexdigest() for end, content in found.items()}
        for file, found in beside.items()
    }
    paths = {one.entry.file: one.path for one in wheels}
    bases = {one.entry.file: _fill(base, one) for one in wheels}

    def where(entry: IndexEntry, inside: str) -> str:
        if base:
            return f"{bases[entry.file]}/{quote(entry.file if files == STAY else entry.place)}"
        if files == STAY:
            return quote(os.path.relpath(paths[entry.file], out / inside))
        return quote(posixpath.relpath(entry.place, inside or "."))

    return pages.compute_pages(
        [one.entry for one in wheels], yanked, where, digests, metadata=files != STAY
    )


def _fill(base: str, wheel: ScannedWheel) -> str:
    """Return --base-url with what its placeholders stand for."""
    version = wheel.entry.version
    tag = finished_wheel.source_tag(
        version, dist_files.read_manifest(wheel.path) if "{tag}" in base else {}
    )
    values = dict(zip(PLACEHOLDERS, (wheel.entry.name, version.public, tag), strict=True))
    return re.sub(_PLACEHOLDER, lambda match: quote(values[match[1]]), base)


def _base(url: str) -> str:
    """Return the address of the files, with its placeholders, without its last slash. Raises ConfigError."""
    for word in re.findall(_PLACEHOLDER, url):
        require_choice("placeholder of --base-url", word, PLACEHOLDERS, "unknown-placeholder")
    filled, example = re.sub(_PLACEHOLDER, "x", url), "https://wheels.example/whl"
    no_login = "every page would show the password in it: leave user and password out"
    urls.validate_url("--base-url", filled, ("https", "http", "file"), example, no_login)
    return url.rstrip("/")
