"""`invoke bisect`: find the commit that changed behaviour, by git bisect, a build of each step, and a command."""

import json
import os
import shlex
import shutil
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import replace
from io import StringIO
from typing import Any, NamedTuple

from torchmill.commands.command import CommandOutput
from torchmill.commands.doctor import survey_machine
from torchmill.commands.terminal import run_step
from torchmill.config import selection
from torchmill.config.facts import Facts
from torchmill.config.release_lookup import base_package
from torchmill.core.atomic_writes import write_atomically
from torchmill.core.deletion import delete_paths
from torchmill.core.errors import (
    BuildError,
    ConfigError,
    MemoryBuildError,
    SourceError,
    VerifyError,
)
from torchmill.core.exits import print_now
from torchmill.core.locks import hold_folder
from torchmill.core.paths import Layout
from torchmill.core.process import run_in_terminal
from torchmill.core.strict_json import load_object
from torchmill.core.urls import hide_password
from torchmill.fetch.source.history import CommitHistory
from torchmill.fetch.source.request import source_requests
from torchmill.host.interpreters import resolve_interpreter
from torchmill.host.native import native_arch
from torchmill.plan.build_options import NO_OPTIONS, Options
from torchmill.plan.cell_choice import BuildQuestion, choose_cells
from torchmill.plan.options import format_options
from torchmill.wheel.dist_files import read_manifest
from torchmill.wheel.verify.clean_environment import clean_variables, create_environment

UNBUILDABLE = {
    BuildError.exit_code,
    MemoryBuildError.exit_code,
    VerifyError.exit_code,
}  # the commit is, and skipped
RECORD = "search.json"
SKIP, NO_VERDICT = (
    125,
    126,
)  # exit codes of COMMAND, of the latter and above: it was not run, or killed


class CommitSearch(NamedTuple):
    """A search for a commit: what it was told ("asked"), and what came of each commit so far ("tested"), by its id."""

    layout: Layout
    home: Layout  # where it builds: nothing of the user's is changed
    history: CommitHistory
    record: dict[str, Any]

    def go(self) -> CommandOutput:
        """Try the ends, then what git selects, until it knows the commit, or skips leave several.

        Raises ConfigError where the ends are not as they are said to be.
        """
        ends = {} if self.record["asked"]["trust_ends"] else self.record["ends"]
        if wrong := [end for end, commit in ends.items() if self.verdict(commit) != end]:
            told = ", ".join(
                f"--{end} is not {end} ({self.record['tested'][ends[end]][1]})" for end in wrong
            )
            raise ConfigError(
                f"{told}: name others after `invoke bisect --reset`; to find what fixed something, let "
                "COMMAND succeed where it failed (`sh -c '! …'`)",
                code="end-not-as-said",
            )
        while True:
            commit, left = self.history.next_step()
            if not commit:
                return self._result()
            print_now(f"\n{left}")
            self.history.bisect(self.verdict(commit), commit)

    def verdict(self, commit: str) -> str:
        """Return "good", "bad" or "skip"; the commit is built and tried where that is not known."""
        tested = self.record["tested"]
        if commit not in tested:
            print_now(f"commit {self.history.describe(commit)}")
            tested[commit] = self._try(commit)
            write_atomically(
                self.layout.bisect / RECORD, hide_password(json.dumps(self.record, indent=1))
            )
            delete_paths([self.home.trees])  # each commit has a tree of its own, of gigabytes
        word, why = tested[commit]
        print_now(f"{word}: {why}")
        return str(word)

    def _try(self, commit: str) -> tuple[str, str]:
        """Build a commit and run COMMAND with it; return the verdict and why."""
        asked, tag, cell = self.record["asked"], self.record["tag"], self.record["cell"]
        fetch = [
            "invoke",
            "fetch",
            "--tag",
            tag,
            *(["--mirror", asked["mirror"]] if asked["mirror"] else []),
        ]
        if self.record["dependent"]:
            _require_success(fetch)
        _require_success([*fetch, "--package", self.record["package"], "--ref", commit])
        if code := _require_success(["nox", "-s", cell, "--", *asked["options"]], UNBUILDABLE):
            log = self.home.logs / f"{tag}-{cell}.log"
            with suppress(FileNotFoundError):  # what cannot be prepared has none
                log = log.rename(log.with_name(f"{commit}.log"))
            return (
                "skip",
                f"{'its wheel is refused' if code == VerifyError.exit_code else 'it is not built'} ({log})",
            )
        made = {
            "identifier": cell,
            "commit": commit,
        }  # an earlier search, for another cell, left its own wheels there
        wheel = next(
            one
            for one in self.home.dist.glob("*.whl")
            if made.items() <= read_manifest(one).items()
        )
        return self._run_command(self.provide(str(wheel)))

    def provide(self, *wheels: str) -> dict[str, str]:
        """Return the variables of a new environment with these wheels and the packages of --with."""
        venv, wanted = self.layout.bisect / "env", [*wheels, *self.record["asked"]["with"]]
        base = resolve_interpreter(self.record["python"])
        python = create_environment(base, venv, StringIO(), self.layout.environments)
        if wanted:
            _require_success([str(python), "-I", "-m", "pip", "install", "--quiet", *wanted])
        kept = {
            name: value
            for name, value in clean_variables().items()
            if not name.startswith("TORCHMILL_")
        }
        path = os.pathsep.join((str(python.parent), os.environ.get("PATH", os.defpath)))
        return {**kept, "VIRTUAL_ENV": str(venv), "PATH": path}

    def _run_command(self, variables: dict[str, str]) -> tuple[str, str]:
        """Return the verdict of COMMAND, and why. Raises ConfigError where it gives none."""
        command = self.record["asked"]["command"]
        print_now(f"\n$ {shlex.join(command)}")
        code = run_in_terminal(command, variables)
        if not 0 <= code < NO_VERDICT:
            raise ConfigError(
                f"COMMAND ended with {code}, as if it could not be run or was killed: no verdict; correct it; to "
                "find a crash, let a shell turn it into 1 (`sh -c '… || exit 1'`)",
                code="command-without-verdict",
            )
        return {0: "good", SKIP: "skip"}.get(code, "bad"), f"COMMAND ended with {code}"

    def _result(self) -> CommandOutput:
        suspects = [f"  {self.history.describe(one)}" for one in self.history.suspects()]
        first = f"first bad commit:{' one of these, as some were skipped' if suspects[1:] else ''}"
        tested = self.record["tested"].items()
        skipped = [
            f"  {self.history.describe(one)}: {why}"
            for one, (word, why) in tested
            if word == "skip"
        ]
        lines = [
            "",
            first,
            *suspects,
            *(["skipped:", *skipped] if skipped else []),
            f"wheels: {self.home.dist}",
        ]
        return CommandOutput("\n".join(lines), exit_code=int(len(suspects) > 1))


def _require_success(words: Sequence[str], else_return: Collection[int] = ()) -> int:
    """Run a command, and raise an error of its exit code: it is the machine's or the network's, not the commit's."""
    code = run_step(line := shlex.join(words))
    if code and code not in else_return:
        shown = hide_password(line)
        error = SourceError(
            f"`{shown}` failed, as shown above: the same command goes on there",
            code="bisect-stopped",
        )
        error.exit_code = code
        raise error
    return code


def find_bad_commit(  # noqa: PLR0917 - every one is an option
    facts: Facts,
    layout: Layout,
    cell: str | None = None,
    good: str = "",
    bad: str = "",
    tag: str = "",
    mirror: str = "",
    with_: list[str] | None = None,
    trust_ends: bool = False,
    reset: bool = False,
    command: Sequence[str] = (),
    options: Options = NO_OPTIONS,
) -> CommandOutput:
    """Find the commit that changed behaviour, by builds and a command."""
    asked: dict[str, Any] = {
        "cell": cell,
        "good": good,
        "bad": bad,
        "tag": tag,
        "mirror": mirror,
        "with": with_ or [],
    }
    words = format_options(replace(options, label="git"))
    asked |= {"trust_ends": trust_ends, "options": words, "command": command}
    if not reset and not (good and bad and command):
        raise ConfigError(
            "give --good, --bad, and COMMAND after --: `invoke --help bisect`",
            code="bisect-incomplete",
        )
    folder = layout.bisect
    with hold_folder(
        folder, 0, f"another run is searching in {folder}: wait for it", "bisect-running"
    ):
        if reset:
            (folder / RECORD).unlink(missing_ok=True)
            return CommandOutput(
                "no search is under way; `invoke clean --kind bisect` removes what was built"
            )
        record = load_object(folder / RECORD)
        kept = asked | record.get("asked", {})
        if changed := [
            one
            for one, said in asked.items()
            if hide_password(f"{said}") != hide_password(f"{kept[one]}")
        ]:
            raise ConfigError(
                f"another search is under way (other: {', '.join(changed)}): `invoke bisect --reset` ends it",
                code="bisect-under-way",
            )
        home, history = replace(layout, root=folder / "home"), CommitHistory(folder / "history.git")
        search = CommitSearch(layout, home, history, record)
        if not record:
            _begin(facts, search, asked)
        record["asked"] = asked  # which may have a password in it that the file has not
        ours = {
            "TORCHMILL_HOME": str(home.root),
            "TORCHMILL_TAG": record["tag"],
            "TORCHMILL_EXITS": "1",
        }
        print_now(f"$ export {shlex.join(f'{name}={value}' for name, value in ours.items())}")
        os.environ.update(ours)
        return search.go()


def _begin(facts: Facts, search: CommitSearch, asked: dict[str, Any]) -> None:
    """Fetch the history, and refuse what can be refused before a build. Raises ConfigError, SourceError."""
    tags = {one.tag for one in facts.releases[base_package(facts).name]}
    tag = asked["tag"] or next((one for one in (asked["bad"], asked["good"]) if one in tags), "")
    release = selection.selected_or_newest(facts, search.layout, tag)
    question = BuildQuestion([asked["cell"]] if asked["cell"] else [], with_base=False)
    cell = choose_cells(facts, question, survey_machine(facts, search.layout), release)[0]
    (request,) = source_requests(facts, [cell.release], ref="", mirror=asked["mirror"], origin="")
    if request.origin:
        raise ConfigError(
            f"{cell.build.package} comes from {request.origin}, without a history",
            code="no-history",
        )
    print_now(f"fetching the history of {cell.build.package}")
    search.history.fetch(request)
    ends = {end: search.history.find_commit(asked[end]) for end in ("good", "bad")}
    search.history.start(**ends)
    built = {
        "cell": cell.build.identifier(native_arch()),
        "python": cell.build.python,
        "package": cell.build.package,
    }
    dependent = request.package.after is not None
    search.record.update(
        built, asked=asked, ends=ends, tested={}, tag=release.tag, dependent=dependent
    )
    if shutil.which(word := asked["command"][0], path=search.provide()["PATH"]) is None:
        raise ConfigError(
            f"there is no program '{word}' on PATH, nor in the environment: correct COMMAND, or add it by --with",
            code="no-such-command",
        )
