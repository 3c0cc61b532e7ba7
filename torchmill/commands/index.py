"""`invoke index`: write a static package index of the wheels in dist/, or a conda channel."""

from __future__ import annotations

import json as json_
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from torchmill.commands.command import TaskCommand
from torchmill.config.model import Facts
from torchmill.core import console, locks, urls
from torchmill.core.console import ProgressBar
from torchmill.core.errors import ConfigError, DeliveryError
from torchmill.core.paths import Layout
from torchmill.deliver.index import folder, pages, scan
from torchmill.deliver.index.folder import COPY, LINK, STAY, IndexContents, IndexOutcome
from torchmill.deliver.index.pages import Address, IndexEntry, IndexSite
from torchmill.deliver.index.scan import IndexState, ScannedWheel
from torchmill.wheel import wheel_file

# how invoke takes the options


@dataclass(frozen=True, slots=True)
class IndexReport:
    """What was indexed, and what the run did."""

    out: Path
    wheels: tuple[ScannedWheel, ...]
    site: IndexSite
    outcome: IndexOutcome
    warnings: tuple[str, ...]

    def as_data(self) -> dict[str, Any]:
        """Return it for programs."""
        return {
            "index": str(self.out),
            "wheels": [one.entry.file for one in self.wheels],
            "variants": list(self.site.variants),
            "written": list(self.outcome.written),
            "removed": list(self.outcome.removed),
            "foreign": list(self.outcome.foreign),
            "warnings": list(self.warnings),
        }

    def as_text(self) -> str:
        """Return it for people, with the lines to try."""
        names = list(dict.fromkeys(one.entry.name for one in self.wheels))
        did = f"{len(self.outcome.written)} files written, {len(self.outcome.removed)} removed"
        if not self.outcome.written and not self.outcome.removed:
            did = "nothing had to be written"
        lines = [f"{self.out}: {_count(len(self.wheels), 'wheel')} of {', '.join(names)}; {did}"]
        if self.outcome.foreign:
            lines.append(f"  not the index's, and left alone: {folder.name_few(self.outcome.foreign)}")
        lines += [f"warning: {warning}" for warning in self.warnings]
        return "\n".join([*lines, *self._tries()])

    def _tries(self) -> Iterator[str]:
        newest = self.wheels[-1].entry
        where = self.out.as_uri() + (f"/{newest.variant}" if newest.variant else "")
        pin = f"{newest.name}=={newest.version}"
        yield f"  pip install --extra-index-url {where} {pin}"
        yield f"  uv pip install --index {where} {pin}"


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
    conda: bool = False,
    json: bool = False,
) -> str:
    """Write a static package index of the wheels in dist/, for pip, uv and any web server."""
    if conda:
        others = dist or files != LINK or base_url or yank or unyank or reason or replace or json
        return _channel(facts, layout, out, bool(others))
    if files not in {LINK, COPY, STAY}:
        raise ConfigError(f"--files {files}: say {LINK}, {COPY} or {STAY}")
    target = _absolute(out) if out else layout.index
    dists = [_absolute(each) for each in dist or ()] or [layout.dist]
    replaced = [pages.parse_yanked_version("--replace", each) for each in replace or ()]
    change = pages.parse_yank_options(yank or (), unyank or (), reason)
    base = _base(base_url) if base_url else ""
    folder.require_our_index(target)
    _require_wheels(dists)
    with locks.hold_lock(target / scan.FOLDER, str(target)):
        before = scan.load_state(target) or IndexState()
        wheels = _gathered(dists, before, replaced)
        entries = [one.entry for one in wheels]
        yanked = pages.apply_yanks(before.yanked, change, entries)
        made = _site(wheels, yanked, files, base, target)
        lying = () if files == STAY else wheels
        kept = IndexState({}, {one.entry.file: one.kept for one in wheels}, yanked)
        outcome = folder.write_folder(target, IndexContents(made.pages, lying, kept), before, files)
    report = IndexReport(target, wheels, made, outcome, tuple(pages.requirement_differences(entries)))
    return json_.dumps(report.as_data(), indent=1) if json else report.as_text()


def _absolute(path: str) -> Path:
    """Return a path from the root on, its links as they are."""
    return Path(os.path.abspath(path))  # noqa: PTH100 - pathlib's leaves `..` in it


def _channel(facts: Facts, layout: Layout, out: str, others: bool) -> str:
    from torchmill.deliver.conda import channel

    if others:
        raise ConfigError(
            "--conda writes a channel of conda packages: of the other options it takes only --out"
        )
    return channel.write_channel(facts, layout, _absolute(out) if out else layout.channel)


def _require_wheels(dists: Sequence[Path]) -> None:
    """Refuse to write an index of nothing: it would remove what is there."""
    for dist in dists:
        if not wheel_file.list_wheels(dist):
            raise DeliveryError(
                f"{dist}: holds no wheels: build one (`nox -l`), or name another folder with --dist"
            )


def _gathered(dists: Sequence[Path], before: IndexState, replaced: Sequence[str]) -> tuple[ScannedWheel, ...]:
    """Read the wheels, and show how far that is, unless all are remembered."""
    with ExitStack() as shown:
        bars: list[ProgressBar] = []

        def note(done: int, total: int, name: str) -> None:
            if not bars:
                bars.append(shown.enter_context(console.show_progress()).task("wheels"))
                shown.callback(bars[0].close)
            bars[0].update(done, total, name)

        return scan.scan_wheels(dists, before.wheels, replaced, note)


def _site(
    wheels: Sequence[ScannedWheel], yanked: dict[str, str], files: str, base: str, out: Path
) -> IndexSite:
    where: Address = pages.url_below(base) if base else pages.relative_url
    if files == STAY:
        paths = {one.entry.file: one.path for one in wheels}

        def where(entry: IndexEntry, inside: str) -> str:
            return (
                f"{base}/{quote(entry.file)}"
                if base
                else quote(os.path.relpath(paths[entry.file], out / inside))
            )

    return pages.compute_site([one.entry for one in wheels], yanked, where, metadata=files != STAY)


def _base(url: str) -> str:
    """Return the address of the files without its last slash. Raises ConfigError."""
    parts = urls.validate_url("--base-url", url, ("https", "http", "file"), "https://wheels.example/whl")
    if urls.has_login(parts):
        raise ConfigError("--base-url: every page would tell the password in it: leave user and password out")
    return url.rstrip("/")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("s" if number != 1 else "")


INDEX = TaskCommand(
    write_index,
    {
        "dist": "a folder of wheels, by default dist/; may be repeated",
        "out": "where the index is written, by default index/ beside dist/; empty, or an index",
        "files": f"how the wheels get into it: {LINK} (a second name of the same file, a copy where "
        f"that cannot "
        f"be; the default), {COPY}, or {STAY}: they are linked to where they are",
        "base_url": "the address below which the wheels are served, if that is another than the pages'",
        "yank": "withdraw a version, such as torch==1.13.1+cpu: only who asks for exactly it gets it; may be "
        "repeated; remembered",
        "reason": "why it is withdrawn",
        "unyank": "take that back; may be repeated",
        "replace": "replace the wheels of a version that are indexed already; may be repeated",
        "conda": "write a conda channel of the packages in dist/conda/ instead, by default into channel/",
        "json": "print JSON",
    },
    repeated=("dist", "yank", "unyank", "replace"),
    short_flags=False,
)
