"""`invoke bisect`, as a user runs it on a real history: builds, commits that do not build, a kill, wrong input."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import pytest
from press_support import written_wheels

from tests.support.commands import ROOT, environment, run
from tests.support.refusals import refused, without_code
from tests.support.sampled import THIS
from tests.support.searched import SearchedUpstream, make_history
from tests.support.source_upstream import git
from torchmill.commands import bisect
from torchmill.commands.bisect import CommitSearch, SearchRecord
from torchmill.commands.command import CommandOutput
from torchmill.config.remembered_facts import load_facts
from torchmill.core.paths import Layout
from torchmill.fetch.source.history import CommitHistory

CELL = f"wheel-{THIS}-cpu"
HANG_SECONDS = 900.0  # after which nobody waits for a search any more
CHECK = """
import sys, time
import tinytorch
with open(sys.argv[1], "a+") as file:
    file.write(tinytorch.git_version + "\\n")
    file.seek(0)
    tried = file.read().split()
if len(tried) == 3:
    time.sleep(600)  # until it is killed
sys.exit(tinytorch.total([1.0, 2.0]) != 3.0)
"""


@pytest.fixture(scope="module")
def history(upstream: Path, tmp_path_factory: pytest.TempPathFactory) -> SearchedUpstream:
    return make_history(
        upstream, tmp_path_factory.mktemp("searched") / "up", length=6, breaks=5, not_built=[3]
    )


@pytest.fixture
def env(envs: Path, cache: Path) -> dict[str, str]:
    return {
        "TORCHMILL_CONFIGS": str(ROOT / "sample" / "build_configs"),
        "XDG_CACHE_HOME": str(cache),
        "NOX_ENVDIR": str(envs),
    }


@pytest.fixture
def killed_at_the_end() -> Iterator[list[subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []
    yield started
    for process in started:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def until_third_try(tried: Path, search: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + HANG_SECONDS
    while not tried.exists() or len(tried.read_text(encoding="utf-8").split()) < 3:
        assert search.poll() is None, search.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.long
def test_a_search_survives_a_kill_and_finds_the_commit(
    tmp_path: Path,
    history: SearchedUpstream,
    env: dict[str, str],
    killed_at_the_end: list[subprocess.Popen[str]],
) -> None:
    check, tried, home = tmp_path / "check.py", tmp_path / "tried", tmp_path / "home"
    check.write_text(CHECK, encoding="utf-8")
    words = (
        "bisect",
        CELL,
        "--good=v1.0.0",
        "--bad=main",
        history.mirror,
        "--",
        "python",
        str(check),
        str(tried),
    )
    command = [sys.executable, "-m", "invoke", *words]
    search = subprocess.Popen(
        command, cwd=ROOT, env=environment(home, env), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        start_new_session=True,
    )  # fmt: skip
    killed_at_the_end.append(search)
    until_third_try(tried, search)
    os.killpg(search.pid, signal.SIGKILL)
    search.communicate()

    done = run("invoke", *words, home=home, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"first bad commit:\n  {history.commits[4]} change 5\n" in done.stdout
    assert f"skipped:\n  {history.commits[2]} change 3: it is not built" in done.stdout
    assert "#error" in (
        home / f".torchmill/bisect/home/.torchmill/logs/{history.commits[2]}.log"
    ).read_text("utf-8")
    assert "$ nox -s" in done.stdout
    assert "Bisecting: " in done.stdout
    seen = tried.read_text(encoding="utf-8").split()
    assert seen[2] == seen[3], "the killed step is done again"
    assert len({*seen}) == len(seen) - 1, "and no other one is"
    assert not (home / "dist").exists(), "the user's own folder is as it was"
    assert not (home / ".torchmill" / "sources").exists()

    other = run("invoke", *words[:-1], home=home, env=env)
    assert (other.returncode, other.stderr.count("\n")) == (2, 1)
    assert "another search is under way (other: command)" in other.stderr
    assert run("invoke", "bisect", "--reset", home=home, env=env).returncode == 0
    assert run("invoke", "clean", "--kind=bisect", home=home, env=env).returncode == 0
    assert not list((home / ".torchmill" / "bisect").glob("home"))


@pytest.mark.long
@pytest.mark.parametrize(
    ("program", "message"),
    [
        ("sys.exit(7)", "--good is not good (COMMAND ended with 7)"),
        (
            "os.kill(os.getpid(), signal.SIGSEGV)",
            "COMMAND ended with -11, as if it could not be run or was killed",
        ),
    ],
)
def test_a_command_that_tells_nothing(
    tmp_path: Path, history: SearchedUpstream, env: dict[str, str], program: str, message: str
) -> None:
    words = ("bisect", CELL, "--good=v1.0.0", f"--bad={history.commits[0][:12]}", history.mirror)
    program = f"import os, signal, sys, tinytorch; {program}"
    done = run("invoke", *words, "--", "python", "-c", program, home=tmp_path, env=env)
    assert done.returncode == 2, done.stdout + done.stderr
    assert message in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "refusal",
    [
        ("--good=v1.0.0 --bad=main", 2, "COMMAND after --"),
        ("--good=v1.0.0 -- true", 2, "give --good, --bad"),
        ("--good=main --bad=main -- true", 2, "was both good and bad"),
        ("--good=main --bad=v1.0.0 -- true", 2, "mistook good and bad"),
        ("--good=v1.0.0 --bad=mian -- true", 5, "no tag, branch or commit 'mian'"),
        ("--good=v1.0.0 --bad=main -- ./no-program", 2, "there is no program './no-program'"),
        ("--good=v1.0.0 --bad=main --tag=v7 -- true", 4, "'v7'"),
    ],
)
def test_what_is_refused_before_anything_is_built(
    tmp_path: Path, history: SearchedUpstream, env: dict[str, str], refusal: tuple[str, int, str]
) -> None:
    words, code, message = refusal
    done = run("invoke", "bisect", CELL, history.mirror, *words.split(), home=tmp_path, env=env)
    assert done.returncode == code, done.stdout + done.stderr
    assert message in done.stderr
    assert without_code(done.stderr).startswith("error: ")
    assert "$ " not in done.stdout


def searched(
    folder: Path, tested: Mapping[int, str], *, trust_ends: bool = False
) -> tuple[CommitSearch, list[str]]:
    """Return a search in a history of five commits that are tried already, with these verdicts, and the commits."""
    history, commits = CommitHistory(folder / "history.git"), list[str]()
    (folder / "history.git").mkdir(parents=True)
    history.git("init", "--quiet", "--bare")
    for name, value in (("user.name", "Tester"), ("user.email", "tester@example.org")):
        history.git("config", name, value)  # the search itself makes no commits
    tree = history.git("hash-object", "-t", "tree", "-w", os.devnull).strip()
    for number in range(5):
        parent = ("-p", commits[-1]) if commits else ()
        commits.append(history.git("commit-tree", tree, *parent, "-m", f"c{number}").strip())
    history.start(good=commits[0], bad=commits[4])
    request = {"trust_ends": trust_ends, "with": [], "command": ["true"]}
    verdicts = {commits[number]: (word, "COMMAND ended so") for number, word in tested.items()}
    record = SearchRecord(
        asked=request,
        ends={"good": commits[0], "bad": commits[4]},
        python=THIS,
        tested=verdicts,
    )
    layout = Layout(folder, folder / "cache")
    return CommitSearch(layout, layout, history, record), commits


def test_ends_are_tried_first_unless_they_are_trusted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    between = {1: "good", 2: "good", 3: "bad"}
    wrong, _ = searched(tmp_path / "wrong", {0: "bad", 4: "bad", **between})
    with refused("end-not-as-said") as caught:
        wrong.run()
    assert "--good is not good (COMMAND ended so)" in str(caught.value)
    trusted, commits = searched(
        tmp_path / "trusted", between, trust_ends=True
    )  # whose ends are never looked up
    assert f"first bad commit:\n  {commits[3]} c3" in trusted.run().text
    assert commits[0] not in capsys.readouterr().out


def test_what_the_command_needs_beside_the_wheel_is_in_its_environment(tmp_path: Path) -> None:
    search, _ = searched(tmp_path, {})
    search.record["asked"]["with"] = [str(written_wheels.made(tmp_path, "beside"))]
    variables = search.create_venv_variables()
    program = ["python", "-c", "import beside, sys; print(sys.prefix)"]
    done = subprocess.run(
        program, env=variables, cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == variables["VIRTUAL_ENV"] == str(search.layout.bisect / "env")


def test_the_wheels_of_an_earlier_search_for_another_cell_are_not_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    search, commits = searched(tmp_path, {})
    search.record.update(
        SearchRecord(tag="v1", cell="wheel-3.12-cpu", package="torch", dependent=False)
    )
    search.record["asked"] |= {"mirror": "", "options": []}
    search.home.dist.mkdir()
    for python, commit in (("3.11", 1), ("3.12", 2), ("3.12", 1)):
        tag = f"cp{python.replace('.', '')}"
        wheel = search.home.dist / f"tiny-1.0+git{commits[commit][:7]}-{tag}-{tag}-linux_x86_64.whl"
        manifest = {"identifier": f"wheel-{python}-cpu", "commit": commits[commit]}
        wheel.touch()
        wheel.with_name(f"{wheel.name}.json").write_text(json.dumps(manifest), encoding="utf-8")
    tried = list[str]()
    monkeypatch.setattr(bisect, "_run_or_stop", lambda *_: 0)

    def provide(_: CommitSearch, *wheels: str) -> dict[str, str]:
        tried.extend(wheels)
        return dict(os.environ)

    monkeypatch.setattr(CommitSearch, "create_venv_variables", provide)
    with refused("bisect-stopped") as caught:
        search.verdict(commits[0])
    assert f"no wheel of {commits[0]}" in str(caught.value)
    assert search.verdict(commits[1]) == "good"
    assert tried == [
        str(search.home.dist / f"tiny-1.0+git{commits[1][:7]}-cp312-cp312-linux_x86_64.whl")
    ]


def test_a_build_without_a_log_names_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    search, commits = searched(tmp_path, {})
    search.record.update(
        SearchRecord(tag="v1", cell="wheel-3.12-cpu", package="torch", dependent=False)
    )
    search.record["asked"] |= {"mirror": "", "options": []}
    monkeypatch.setattr(bisect, "_run_or_stop", lambda _, accepted=(): min(accepted, default=0))
    assert search.verdict(commits[1]) == "skip"
    assert search.record["tested"][commits[1]][1] == "it is not built"


def test_a_search_goes_on_at_a_mirror_whose_password_it_does_not_keep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mirrors = list[str]()

    def begin(_: object, search: CommitSearch, request: dict[str, object]) -> None:
        search.record.update(SearchRecord(asked=request, tag="v1", tested={}))

    def go(search: CommitSearch) -> CommandOutput:
        mirrors.append(search.record["asked"]["mirror"])
        search.verdict("abc")
        return CommandOutput("")

    monkeypatch.setattr(bisect, "_start_search", begin)
    monkeypatch.setattr(CommitSearch, "run", go)
    monkeypatch.setattr(CommitSearch, "_try", lambda *_: ("good", "COMMAND ended with 0"))
    monkeypatch.setattr(CommitHistory, "describe", lambda *_: "abc")
    monkeypatch.setattr(os, "environ", dict(os.environ))
    facts, layout, mirror = (
        load_facts(ROOT),
        Layout(tmp_path, tmp_path / "cache"),
        "https://me:{}@host.example/git",
    )
    for password in ("secret", "another"):
        bisect.find_bad_commit(
            facts, layout, good="a", bad="b", mirror=mirror.format(password), command=["true"]
        )
    assert mirrors == [mirror.format("secret"), mirror.format("another")]
    record = (layout.bisect / bisect.RECORD).read_text(encoding="utf-8")
    assert "host.example" in record
    assert "secret" not in record
    with refused("bisect-under-way"):
        bisect.find_bad_commit(
            facts, layout, good="a", bad="b", mirror="https://other.example/git", command=["true"]
        )


def test_a_mirror_without_the_repository(tmp_path: Path, env: dict[str, str]) -> None:
    words = (
        "bisect",
        CELL,
        "--good=v1.0.0",
        "--bad=main",
        f"--mirror=file://{tmp_path}",
        "--",
        "true",
    )
    done = run("invoke", *words, home=tmp_path / "home", env=env)
    assert done.returncode == 5, done.stdout + done.stderr
    assert "no repository that can be read" in done.stderr


def test_a_commit_that_cannot_be_fetched_stops_the_search(
    tmp_path: Path, upstream: Path, env: dict[str, str]
) -> None:
    """Its exit code is the fetch's, no commit is skipped for it, and the same command tries again."""
    up = make_history(upstream, tmp_path / "up", length=1)
    submodule = up.folder / "tiny" / "tinymath.git"
    submodule.rename(submodule.with_suffix(".away"))
    words = ("bisect", CELL, "--good=v1.0.0", "--bad=main", up.mirror, "--", "true")
    for _ in range(2):
        done = run("invoke", *words, home=tmp_path / "home", env=env)
        assert done.returncode == 5, done.stdout + done.stderr
        assert "failed, as shown above: the same command continues the search" in done.stderr
        assert "tinymath" in done.stderr
        assert "skip" not in done.stdout


def test_a_changed_source_is_not_lost(
    tmp_path: Path, history: SearchedUpstream, env: dict[str, str]
) -> None:
    home = tmp_path / ".torchmill/bisect/home"
    fetched = run("invoke", "fetch", "--tag=v1.0.0", history.mirror, home=home, env=env)
    assert fetched.returncode == 0, fetched.stderr
    changed = home / ".torchmill/sources/tinytorch/v1.0.0/tree/README.md"
    changed.write_text("mine\n", encoding="utf-8")
    words = ("bisect", CELL, "--good=v1.0.0", "--bad=main", history.mirror, "--", "true")
    done = run("invoke", *words, home=tmp_path, env=env)
    assert done.returncode == 5, done.stdout + done.stderr
    assert "changes that are not committed (README.md)" in done.stderr
    assert changed.read_text(encoding="utf-8") == "mine\n"


def test_two_searches_at_once(tmp_path: Path, env: dict[str, str]) -> None:
    (tmp_path / ".torchmill/bisect").mkdir(parents=True)
    hold = "import sys; from filelock import FileLock as L; lock = L(sys.argv[1]); lock.acquire(); "
    hold += "print('held', flush=True); input()"
    lock = str(tmp_path / ".torchmill/bisect/lock")
    with subprocess.Popen(
        [sys.executable, "-c", hold, lock], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout
        holder.stdout.readline()
        done = run(
            "invoke", "bisect", CELL, "--good=a", "--bad=b", "--", "true", home=tmp_path, env=env
        )
        holder.communicate("\n")
    assert done.returncode == 10, done.stdout + done.stderr
    assert "another run is searching" in done.stderr


def test_the_history_has_no_files(
    tmp_path: Path, history: SearchedUpstream, env: dict[str, str]
) -> None:
    words = ("bisect", CELL, "--good=v1.0.0", "--bad=main", history.mirror, "--", "./no-program")
    run("invoke", *words, home=tmp_path, env=env)
    folder = tmp_path / ".torchmill/bisect/history.git"
    kinds = git(folder, "cat-file", "--batch-all-objects", "--batch-check=%(objecttype)").split()
    assert {*kinds} <= {"commit", "tag"}
    assert kinds
