"""`invoke build --new-torch`: build a family of packages for the torch that has just appeared.

The index that pip uses is asked for a torch that is newer than the facts. If it has one, its facts
are drafted, and each package is built against its wheels by an `invoke build` of its own: one that
fails does not stop the others.

The drafted facts lie in the state folder and are merged with the others in the user's cache;
TORCHMILL_CONFIGS names the merged folder to the commands that are run. Neither the shipped facts
nor those of a project are changed.
"""

import contextlib
import json as json_format
import os
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from types import MappingProxyType
from typing import Any

from packaging.version import Version

from torchmill.commands.build_request import BuildRequest
from torchmill.commands.command import CommandOutput
from torchmill.commands.index import write_index
from torchmill.commands.terminal import agree, stream_step
from torchmill.config import facts_reader
from torchmill.config.build import CPU
from torchmill.config.facts import Facts
from torchmill.config.own_facts import merge_facts
from torchmill.config.release_lookup import base_package, find_release, refuse_left_out
from torchmill.core import console, locks
from torchmill.core.atomic_writes import write_atomically
from torchmill.core.console import format_for_user
from torchmill.core.errors import BuildError, ConfigError, ImpossibleBuildError
from torchmill.core.exits import print_now
from torchmill.core.lenient_paths import read_text
from torchmill.core.paths import CONFIGS, Layout
from torchmill.core.plain_text import as_plain_text
from torchmill.core.strict_json import load_object
from torchmill.core.urls import redact_url
from torchmill.fetch import package_index
from torchmill.fetch.download import http_session
from torchmill.host.native import native_arch
from torchmill.plan import cell_lookup
from torchmill.plan.build_options import PYPI, Options
from torchmill.plan.cell_choice import running_python, split_texts
from torchmill.plan.family_results import count_states, describe_cells, with_end
from torchmill.plan.new_torch import (
    IndexTorch,
    choose_torch,
    describe_no_news,
    new_torches,
    torch_of_tag,
    torches_on_index,
)
from torchmill.plan.options import format_options
from torchmill.plan.package_family import (
    FamilyCell,
    choose_family,
    describe_base,
    group_jobs,
    obstacle_of,
    pending_cells,
    plan_family,
    settled_records,
    with_records,
)
from torchmill.wheel.dist_files import read_manifest

FAMILY_VARIABLE = "TORCHMILL_FAMILY"  # the packages of `--new-torch` without names
_RECORD = "record.json"
_FACTS = "facts"  # the folder of drafted facts
_CACHE_FOLDER = "upstream"  # in the user's cache: results about wheels of an index


def build_family(
    facts: Facts,
    layout: Layout,
    request: BuildRequest,
    *,
    unfit: Mapping[str, str] = MappingProxyType({}),
    json: bool = False,
) -> CommandOutput:
    """Build packages against the newest torch on the index, if it is newer than the facts.

    The names of the request are those of packages; without names, TORCHMILL_FAMILY has them. Its tag
    is a new torch that is tried whatever earlier runs recorded. `unfit` are further options that do
    not go together with these, by their flags; "" for those that are not given. With `json`,
    standard output stays empty until the end.

    Raises NetworkError if the index does not answer, ConfigError for names of no package and for
    options that do not go together, ImpossibleBuildError if no package can be built.
    """
    options = request.options
    _refuse_unfit({"--ref": request.source.ref, **unfit, "--torch": options.torch or ""})
    family = list(request.names) or split_texts([os.environ.get(FAMILY_VARIABLE, "")])
    packages = choose_family(facts, family)
    index = package_index.configured_index()
    arch = native_arch()
    torches = _ask_index(facts, index, arch)
    pythons = _usual_pythons(split_texts(request.pythons))
    news = new_torches(facts, torches)
    if request.tag:
        news = [torch_of_tag(facts, torches, request.tag)]
    torch = choose_torch(news, pythons)
    if torch is None:
        sentence = describe_no_news(facts, news, pythons, arch, redact_url(index))
        return CommandOutput(sentence, _no_data(sentence))
    words = [*request.source.words, *(["--elsewhere"] if request.elsewhere else [])]
    layout.new_torch.mkdir(parents=True, exist_ok=True)
    with locks.hold_work_folder(layout.new_torch, "--new-torch"):
        drafted = _draft(facts, layout, torch, index)
        release = find_release(drafted, base_package(facts).name, torch.version)
        cells = plan_family(
            drafted,
            packages,
            describe_base(drafted, release, torch, arch),
            pythons=pythons or [_default_python(torch)],
            variants=split_texts(request.variants),
            options=options,
        )
        run = FamilyRun(
            facts=drafted,
            layout=layout,
            torch=torch,
            tag=release.tag,
            index=redact_url(index),
            words=words,
            gpus=request.gpus,
            options=options,
            json=json,
        )
        if not request.tag:
            cells = with_records(cells, run.recorded())
        return run.build(cells, yes=request.yes, dry_run=request.dry_run)


def _no_data(because: str) -> dict[str, Any]:
    """Return the output for programs if no torch is new."""
    return {
        "new": False,
        "because": because,
        "torch": None,
        "tag": None,
        "facts": None,
        "cells": [],
        "jobs": [],
        "index": None,
    }


def _refuse_unfit(options: Mapping[str, str]) -> None:
    """Raise ConfigError if one of these options is given; "" stands for one that is not."""
    given = [flag for flag, value in options.items() if value]
    if given == ["--json"]:
        raise ConfigError(
            "--json prints the results of --new-torch: add that, or leave --json out",
            code="contradictory-options",
        )
    if given:
        raise ConfigError(
            f"--new-torch builds against the torch of the index, here, and each package of its own "
            f"release: leave {' and '.join(given)} out",
            code="contradictory-options",
        )


def _ask_index(facts: Facts, index: str, arch: str) -> list[IndexTorch]:
    """Return the releases of torch on an index, the newest first. Raises NetworkError."""
    with http_session() as session:
        files = package_index.project_files(session, index, base_package(facts).name)
    return torches_on_index(facts, files, arch)


def _usual_pythons(pythons: Sequence[str]) -> list[str]:
    """Return Pythons as identifiers have them: "3.12" of "py312"."""
    return [cell_lookup.usual_spelling(f"wheel-{python}-cpu").split("-")[1] for python in pythons]


def _default_python(torch: IndexTorch) -> str:
    """Return the Python to build for if the user names none: this one, else the newest usual one."""
    if running_python() in torch.pythons:
        return running_python()
    usual = [python for python in torch.pythons if not python.endswith("t")]
    return (usual or torch.pythons)[-1]


def _draft(facts: Facts, layout: Layout, torch: IndexTorch, index: str) -> Facts:
    """Draft the facts of a torch into the state folder; return them merged with the others.

    Facts that have the release already, drafted by somebody, are taken as they are. Raises
    NetworkError, and ConfigError if the drafted file cannot be read.
    """
    from tools import upstream_check, upstream_draft

    known = {release.version for release in facts.releases[base_package(facts).name]}
    if torch.version in known:
        return facts
    with console.show_progress() as bars:
        observed = upstream_check.observe_release(
            facts, torch.version, index, layout.cache / _CACHE_FOLDER, bars
        )
    text = upstream_draft.draft_release(facts, observed, torch.version)
    # A folder for each torch: a draft must not replace facts that somebody has completed since.
    folder = layout.new_torch / _FACTS / torch.version
    file = folder / "releases" / f"{torch.version}.toml"
    if read_text(file) != text:
        # An unchanged draft keeps its date, by which the merged folder is found again.
        write_atomically(file, text)
    merged = merge_facts(folder, facts.folder, layout.cache / CONFIGS)
    drafted = facts_reader.read_usable_facts(merged or facts.folder)
    refuse_left_out(drafted, torch.version)
    return drafted


@dataclass(frozen=True, slots=True)
class FamilyRun:
    """One run of `--new-torch`: the cells of a family are built one after another."""

    facts: Facts  # with those of the torch
    layout: Layout
    torch: IndexTorch
    tag: str  # of the torch
    index: str  # for messages
    words: Sequence[str]  # options of each `invoke build`: "--elsewhere"
    gpus: Sequence[str]  # values of its --gpu
    options: Options  # its other options
    json: bool  # standard output has to stay empty until the end

    def build(self, cells: Sequence[FamilyCell], *, yes: bool, dry_run: bool) -> CommandOutput:
        """Show the cells, build the pending ones if the user agrees, and index the wheels.

        With `dry_run`, they are only shown. The output has an exit code if the user said no, or if
        a build failed. Raises ImpossibleBuildError if every cell is refused, except with `dry_run`.
        """
        cells = self._with_finished_wheels(cells)
        if not pending_cells(cells):
            return self._without_news(cells, dry_run=dry_run)
        if dry_run:
            return self._report(cells)
        plan = "\n".join([self._title(), *describe_cells(cells), self._claim()])
        self._show(plan)
        if not agree("Go on?", yes=yes):
            data = self._as_data(cells)
            return CommandOutput("nothing was done", data, exit_code=1)
        with self._selection_kept():
            cells = self._build_pending(cells)
        output = self._report(cells, self._index())
        if all(cell.state in {"built", "refused"} for cell in cells):
            return output
        return replace(output, exit_code=BuildError.exit_code)

    def recorded(self) -> Mapping[str, Mapping[str, str]]:
        """Return the results that earlier runs have recorded for this torch, by identifier."""
        releases = load_object(self.layout.new_torch / _RECORD).get("releases")
        results = releases.get(self.torch.version) if isinstance(releases, dict) else None
        if not isinstance(results, dict):
            return {}
        return {name: record for name, record in results.items() if isinstance(record, dict)}

    def _show(self, text: str) -> None:
        """Print a text before the end of the run."""
        if self.json:
            sys.stderr.write(as_plain_text(f"{text}\n"))
        else:
            print_now(format_for_user(text))

    def _build_pending(self, cells: Sequence[FamilyCell]) -> list[FamilyCell]:
        """Build the pending cells, each behind those that it needs; return all with their results.

        Each result is recorded as soon as it is known.
        """
        by_name = {cell.identifier: cell for cell in cells}
        for cell in pending_cells(cells):
            obstacle = obstacle_of(cell, by_name)
            if obstacle:
                by_name[cell.identifier] = replace(cell, state="skipped", reason=obstacle)
            else:
                by_name[cell.identifier] = self._build_cell(cell)
            self._record(by_name.values())
        return list(by_name.values())

    def _build_cell(self, cell: FamilyCell) -> FamilyCell:
        """Run `invoke build` for one cell, and return it with the result."""
        end = stream_step(self._command(cell), sys.stderr if self.json else sys.stdout)
        return replace(with_end(cell, end), wheel=self._finished_wheels().get(cell.identifier, ""))

    def _command(self, cell: FamilyCell) -> str:
        """Return the command that builds a cell."""
        words = ["invoke", "build", cell.identifier]
        words += [f"--tag={self.tag}", f"--torch={PYPI}", "--yes", *self.words]
        if cell.variant == CPU:
            # GPUs and a list of capabilities are for the other cells, and refused without CUDA.
            words += format_options(replace(self.options, arch_list=None))
        else:
            words += [f"--gpu={name}" for name in self.gpus]
            words += format_options(self.options)
        return f"{self._facts_variable()} {shlex.join(words)}"

    def _facts_variable(self) -> str:
        """Return the setting by which commands find the drafted facts."""
        return shlex.join([f"TORCHMILL_CONFIGS={self.facts.folder}"])

    def _with_finished_wheels(self, cells: Sequence[FamilyCell]) -> list[FamilyCell]:
        """Return cells, those whose wheel is in dist/ already as built."""
        wheels = self._finished_wheels()
        updated = []
        for cell in cells:
            wheel = wheels.get(cell.identifier, "")
            is_finished = wheel and cell.state == "pending"
            updated.append(replace(cell, state="built", wheel=wheel) if is_finished else cell)
        return updated

    def _finished_wheels(self) -> dict[str, str]:
        """Return the wheels in dist/ that are built against this torch, by identifier."""
        wheels = {}
        for path in sorted(self.layout.dist.glob("*.whl")):
            manifest = read_manifest(path)
            _, _, version = str(manifest.get("torch") or "").partition("==")
            with contextlib.suppress(ValueError):
                if Version(version).public == self.torch.version:
                    wheels[str(manifest.get("identifier"))] = str(path)
        return wheels

    @contextlib.contextmanager
    def _selection_kept(self) -> Iterator[None]:
        """Leave the selected release as it was: other commands do not know the new one."""
        path = self.layout.selection
        before = path.read_bytes() if path.exists() else None
        try:
            yield
        finally:
            if before is not None:
                write_atomically(path, before)
            else:
                path.unlink(missing_ok=True)

    def _record(self, cells: Iterable[FamilyCell]) -> None:
        """Record the results that count, beside those of other cells and of other releases."""
        path = self.layout.new_torch / _RECORD
        releases = load_object(path).get("releases")
        if not isinstance(releases, dict):
            releases = {}
        releases[self.torch.version] = {**self.recorded(), **settled_records(cells)}
        write_atomically(path, json_format.dumps({"releases": releases}, indent=1) + "\n")

    def _index(self) -> CommandOutput | None:
        """Write the package index of all wheels in dist/; None if there are none."""
        if not any(self.layout.dist.glob("*.whl")):
            return None
        return write_index(self.facts, self.layout)

    def _without_news(self, cells: Sequence[FamilyCell], *, dry_run: bool) -> CommandOutput:
        """Return that each cell was tried before, or cannot be built.

        Raises ImpossibleBuildError if every cell is refused, unless it was only asked (`dry_run`).
        """
        sentence = (
            f"nothing is new: {self._title()}, and the family was tried before: "
            f"{count_states(cells)}; `--tag {self.tag}` tries again"
        )
        if all(cell.state == "refused" for cell in cells):
            lines = [f"  {cell.identifier}: {cell.reason}" for cell in cells]
            sentence = "\n".join([f"{self._title()}, and nothing can be built for it:", *lines])
            if not dry_run:
                raise ImpossibleBuildError(sentence, code="impossible-build")
        data = {**self._as_data(cells), "new": False, "because": sentence}
        return CommandOutput(sentence, data)

    def _report(
        self, cells: Sequence[FamilyCell], index: CommandOutput | None = None
    ) -> CommandOutput:
        """Return the results for people and for programs."""
        lines = [self._title(), *describe_cells(cells), self._claim()]
        if index is not None:
            lines.append(index.text)
        return CommandOutput("\n".join(lines), self._as_data(cells, index))

    def _as_data(
        self, cells: Sequence[FamilyCell], index: CommandOutput | None = None
    ) -> dict[str, Any]:
        """Return the results for programs."""
        return {
            "new": True,
            "because": "",
            "torch": self.torch.version,
            "tag": self.tag,
            "facts": str(self.facts.folder),
            "cells": [asdict(cell) for cell in cells],
            "jobs": [asdict(job) for job in group_jobs(pending_cells(cells))],
            "index": index.data["index"] if index is not None else None,
        }

    def _title(self) -> str:
        """Return which torch has appeared, and where."""
        return f"{base_package(self.facts).name} {self.torch.version} is on {self.index}"

    def _claim(self) -> str:
        """Return what is known of the builds, and where the drafted facts are."""
        return (
            "its facts are drafted from the index alone; built means that this machine compiled the "
            "wheel and its checks passed here, and nothing more\n"
            f"other commands find this torch with {self._facts_variable()}; "
            "`invoke facts --new --write` adds its file to the facts"
        )
