"""`invoke bisect`: find the commit that changed behaviour.

Git selects the commits, each is built, and a command of the user judges the build. The *ends* of
the search are the commits that the user names: --good and --bad.
"""

import json
import os
import shlex
import shutil
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple, TypedDict, cast

from torchmill.commands.command import CommandOutput
from torchmill.commands.machine_report import survey_machine
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

RECORD = "search.json"
# Exit codes of builds that fail because of the commit: git skips it. Lack of memory is among them,
# because the guard of the build has tried with fewer processes by then, so that a second run fails
# too, while another commit may need less.
UNBUILDABLE = {BuildError.exit_code, MemoryBuildError.exit_code, VerifyError.exit_code}
# Exit codes of COMMAND, as `git bisect run` has them: https://git-scm.com/docs/git-bisect
SKIP = 125
NO_VERDICT = 126  # and above: it could not be run, or was killed


class SearchRecord(TypedDict, total=False):
    """The state of a search, as its file has it; empty before the search has begun.

    It is written after each commit, so that a search that was interrupted can go on.
    """

    asked: dict[str, Any]  # the options of the user, as in `find_bad_commit`
    ends: Mapping[str, str]  # the commits that are said to be "good" and "bad", by these words
    tested: dict[str, tuple[str, str]]  # verdict and reason, by the commit that was tried
    cell: str  # the session that builds each commit, "wheel-3.10-cpu"
    package: str  # that it builds
    python: str
    tag: str  # of the release by whose facts it builds
    dependent: bool  # the package is built against torch


class CommitSearch(NamedTuple):
    """A search for a commit."""

    layout: Layout
    home: Layout  # the folders in which commits are built; the user's own stay as they are
    history: CommitHistory
    record: SearchRecord

    def run(self) -> CommandOutput:
        """Try the ends, unless they are trusted; then the commits that git selects.

        Returns the first bad commit.

        If commits next to it were skipped, the output names all that may be the first bad one.
        Raises ConfigError if the good end is not good, or the bad end is not bad.
        """
        if not self.record["asked"]["trust_ends"]:
            self._require_ends()
        while True:
            commit, progress = self.history.next_step()
            if not commit:
                return self._result()
            print_now(f"\n{progress}")
            self.history.bisect(self.verdict(commit), commit)

    def _require_ends(self) -> None:
        """Raise ConfigError unless the good end is good and the bad end is bad."""
        problems = []
        for end, commit in self.record["ends"].items():
            if self.verdict(commit) != end:
                reason = self.record["tested"][commit][1]
                problems.append(f"--{end} is not {end} ({reason})")
        if problems:
            raise ConfigError(
                f"{', '.join(problems)}: name others after `invoke bisect --reset`; to find what "
                "fixed something, let COMMAND succeed where it failed (`sh -c '! …'`)",
                code="end-not-as-said",
            )

    def verdict(self, commit: str) -> str:
        """Return "good", "bad" or "skip".

        A commit that was not tried before is built and tried, and the result is recorded. The trees
        that it was built in are deleted then.
        """
        tested = self.record["tested"]
        if commit not in tested:
            print_now(f"commit {self.history.describe(commit)}")
            tested[commit] = self._try(commit)
            # --mirror may be a URL with a password, which must not be stored.
            text = hide_password(json.dumps(self.record, indent=1))
            write_atomically(self.layout.bisect / RECORD, text)
            # Each commit is fetched into a tree of its own, of gigabytes.
            delete_paths([self.home.trees])
        verdict, reason = tested[commit]
        print_now(f"{verdict}: {reason}")
        return verdict

    def _try(self, commit: str) -> tuple[str, str]:
        """Build a commit, run COMMAND with its wheel, and return the verdict and the reason."""
        request = self.record["asked"]
        tag = self.record["tag"]
        cell = self.record["cell"]
        fetch = ["invoke", "fetch", "--tag", tag]
        if request["mirror"]:
            fetch += ["--mirror", request["mirror"]]
        if self.record["dependent"]:
            _run_or_stop(fetch)  # torch, against which the package is built
        _run_or_stop([*fetch, "--package", self.record["package"], "--ref", commit])
        code = _run_or_stop(["nox", "-s", cell, "--", *request["options"]], UNBUILDABLE)
        if code:
            problem = "it is not built"
            if code == VerifyError.exit_code:
                problem = "its wheel is refused"
            log = self.home.logs / f"{tag}-{cell}.log"
            if not log.exists():  # the build could not be prepared
                return "skip", problem
            # The build of the next commit would write to the same file.
            log = log.rename(log.with_name(f"{commit}.log"))
            return "skip", f"{problem} ({log})"
        wheel = self._find_wheel(commit)
        return self._run_command(self.create_venv_variables(str(wheel)))

    def _find_wheel(self, commit: str) -> Path:
        """Return the wheel of a commit, by its manifest: earlier searches have left wheels, too.

        Raises SourceError if there is none, although the build succeeded.
        """
        expected = {"identifier": self.record["cell"], "commit": commit}
        for wheel in self.home.dist.glob("*.whl"):
            if expected.items() <= read_manifest(wheel).items():
                return wheel
        raise SourceError(
            f"{self.home.dist} has no wheel of {commit}, which was built just now: the same "
            "command builds it again",
            code="bisect-stopped",
        )

    def create_venv_variables(self, *wheels: str) -> dict[str, str]:
        """Create an environment for COMMAND, and return the variables with which COMMAND runs.

        It has some wheels and the packages of --with. An environment of an earlier commit is
        replaced. TORCHMILL_… is not passed on: COMMAND may run torchmill itself.
        """
        venv = self.layout.bisect / "env"
        interpreter = resolve_interpreter(self.record["python"])
        unread_log = StringIO()  # an error carries the output of the program that failed
        python = create_environment(interpreter, venv, unread_log, self.layout.environments)
        requirements = [*wheels, *self.record["asked"]["with"]]
        if requirements:
            _run_or_stop([str(python), "-I", "-m", "pip", "install", "--quiet", *requirements])
        variables = {}
        for name, value in clean_variables().items():
            if not name.startswith("TORCHMILL_"):
                variables[name] = value
        path = os.pathsep.join((str(python.parent), os.environ.get("PATH", os.defpath)))
        return {**variables, "VIRTUAL_ENV": str(venv), "PATH": path}

    def require_command(self) -> None:
        """Raise ConfigError if COMMAND names no program, on PATH or in an environment for it.

        It is called before anything is built, which may take hours.
        """
        program = self.record["asked"]["command"][0]
        if shutil.which(program, path=self.create_venv_variables()["PATH"]) is None:
            raise ConfigError(
                f"there is no program '{program}' on PATH, nor in the environment: correct "
                "COMMAND, or add it by --with",
                code="no-such-command",
            )

    def _run_command(self, variables: dict[str, str]) -> tuple[str, str]:
        """Return the verdict of COMMAND, and the reason. Raises ConfigError if it gives none."""
        command = self.record["asked"]["command"]
        print_now(f"\n$ {shlex.join(command)}")
        code = run_in_terminal(command, variables)
        if not 0 <= code < NO_VERDICT:
            raise ConfigError(
                f"COMMAND ended with {code}, as if it could not be run or was killed: no verdict; "
                "correct it; to find a crash, let a shell turn it into 1 (`sh -c '… || exit 1'`)",
                code="command-without-verdict",
            )
        verdicts = {0: "good", SKIP: "skip"}
        return verdicts.get(code, "bad"), f"COMMAND ended with {code}"

    def _result(self) -> CommandOutput:
        """Return the first bad commit; with exit code 1, all that may be it if some were skipped."""
        suspects = [f"  {self.history.describe(commit)}" for commit in self.history.suspects()]
        is_certain = len(suspects) <= 1
        title = "first bad commit:"
        if not is_certain:
            title += " one of these, as some were skipped"
        lines = ["", title, *suspects]
        skipped = []
        for commit, (verdict, reason) in self.record["tested"].items():
            if verdict == "skip":
                skipped.append(f"  {self.history.describe(commit)}: {reason}")
        if skipped:
            lines += ["skipped:", *skipped]
        lines.append(f"wheels: {self.home.dist}")
        return CommandOutput("\n".join(lines), exit_code=0 if is_certain else 1)


def _run_or_stop(words: Sequence[str], accepted: Collection[int] = ()) -> int:
    """Run a command, and return its exit code: 0, or one of those that are `accepted`.

    Any other exit code is the fault of the machine or the network, not of the commit. Then
    SourceError is raised, which ends the search with the exit code of the command.
    """
    line = shlex.join(words)
    code = run_step(line)
    if code and code not in accepted:
        error = SourceError(
            f"`{hide_password(line)}` failed, as shown above: the same command continues the "
            "search",
            code="bisect-stopped",
        )
        error.exit_code = code
        raise error
    return code


def find_bad_commit(
    facts: Facts,
    layout: Layout,
    *,
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
    """Search for the commit that changed behaviour, and return the first bad one.

    The same options continue a search that was interrupted; with `reset`, its record is deleted.
    The environment of this process gets the variables with which commits are built. Raises
    ConfigError for options that are missing or differ from those of a recorded search.
    """
    # The label "git" puts the commit into the version of each wheel.
    words = format_options(replace(options, label="git"))
    request: dict[str, Any] = {
        "cell": cell,
        "good": good,
        "bad": bad,
        "tag": tag,
        "mirror": mirror,
        "with": with_ or [],
        "trust_ends": trust_ends,
        "options": words,
        "command": list(command),  # a list, as in the JSON of the record
    }
    if not reset and not (good and bad and command):
        raise ConfigError(
            "give --good, --bad, and COMMAND after --: `invoke --help bisect`",
            code="bisect-incomplete",
        )
    folder = layout.bisect
    busy = f"another run is searching in {folder}: wait for it"
    with hold_folder(folder, 0, message=busy, code="bisect-running"):
        if reset:
            (folder / RECORD).unlink(missing_ok=True)
            return CommandOutput(
                "no search is under way; `invoke clean --kind bisect` removes what was built"
            )
        record = cast("SearchRecord", load_object(folder / RECORD))
        _require_same_search(record.get("asked", {}), request)
        home = replace(layout, root=folder / "home")
        search = CommitSearch(layout, home, CommitHistory(folder / "history.git"), record)
        if not record:
            _start_search(facts, search, request)
        # The record that was read lacks passwords: the options of this call have them.
        record["asked"] = request
        variables = {
            "TORCHMILL_HOME": str(home.root),
            "TORCHMILL_TAG": record["tag"],
            # A session then ends with the exit code of its error, not with nox's own, so that
            # faults of the commit can be told from others.
            "TORCHMILL_EXITS": "1",
        }
        assignments = shlex.join(f"{name}={value}" for name, value in variables.items())
        print_now(f"$ export {assignments}")
        os.environ.update(variables)
        return search.run()


def _require_same_search(before: Mapping[str, Any], request: Mapping[str, Any]) -> None:
    """Raise ConfigError if a search with other options is recorded: `--reset` alone deletes it.

    `before` are the options of the record, {} if there is none.
    """
    changed = []
    for name, value in request.items():
        # The record has no passwords.
        if hide_password(str(before.get(name, value))) != hide_password(str(value)):
            changed.append(name)
    if changed:
        raise ConfigError(
            f"another search is under way (other: {', '.join(changed)}): `invoke bisect --reset` "
            "ends it",
            code="bisect-under-way",
        )


def _start_search(facts: Facts, search: CommitSearch, request: dict[str, Any]) -> None:
    """Fetch the history, and fill the record of a new search.

    Raises ConfigError or SourceError for a search that is impossible, before the first build.
    """
    tag = request["tag"]
    tags = {release.tag for release in facts.releases[base_package(facts).name]}
    # All commits are built by the facts of one release. Without --tag, that is an end of the search
    # if an end is the tag of a release: the bad end first, which is the newer one.
    for end in ("bad", "good"):
        if not tag and request[end] in tags:
            tag = request[end]
    release = selection.selected_or_newest(facts, search.layout, tag)
    names = [request["cell"]] if request["cell"] else []
    machine = survey_machine(facts, search.layout)
    cells = choose_cells(facts, BuildQuestion(names, with_base=False), machine, release)
    build = cells[0].build
    (source_request,) = source_requests(
        facts, [cells[0].release], ref="", mirror=request["mirror"], origin=""
    )
    if source_request.origin:
        raise ConfigError(
            f"{build.package} comes from {source_request.origin}, without a history",
            code="no-history",
        )
    print_now(f"fetching the history of {build.package}")
    search.history.fetch(source_request)
    good = search.history.find_commit(request["good"])
    bad = search.history.find_commit(request["bad"])
    search.history.start(good=good, bad=bad)
    search.record.update(
        SearchRecord(
            asked=request,
            ends={"good": good, "bad": bad},
            tested={},
            cell=build.identifier(native_arch()),
            package=build.package,
            python=build.python,
            tag=release.tag,
            dependent=source_request.package.after is not None,
        )
    )
    search.require_command()
