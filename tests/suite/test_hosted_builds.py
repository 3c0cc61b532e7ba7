"""The reusable workflows and the action from end to end, on the sample: their own shell, conditions and outputs."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.support.commands import ROOT
from tests.support.family import ERROR_LINE, add_package, copy_sample_facts, put_torch
from tests.support.hosted_runner import HostedRunner, evaluate, filled, holds
from tests.support.index_server import Index, serving
from tests.support.sampled import THIS
from torchmill.fetch import package_index

CELL = f"v1.0.0-Linux-X64-cpu-{THIS}"


def require_programs() -> None:
    """Skip a test if this machine lacks a program that hosted runners have."""
    for program in ("jq", "shasum", "bash"):
        if shutil.which(program) is None:
            pytest.skip(f"the steps of hosted runners need {program}, which is not installed")


@pytest.fixture(scope="module")
def github(tmp_path_factory: pytest.TempPathFactory, upstream: Path, envs: Path) -> HostedRunner:
    require_programs()
    settings = {
        f"url.{upstream.as_uri()}/.insteadOf": "https://github.com/",
        "protocol.file.allow": "always",
    }
    env = {"GIT_CONFIG_COUNT": str(len(settings))}
    for number, (key, value) in enumerate(settings.items()):
        env |= {f"GIT_CONFIG_KEY_{number}": key, f"GIT_CONFIG_VALUE_{number}": value}
    env |= {
        "TORCHMILL_CONFIGS": str(ROOT / "sample" / "build_configs"),
        "NOX_ENVDIR": str(envs),
        "PIP_CACHE_DIR": str(envs.with_name("pip")),
        "PIP_NO_BUILD_ISOLATION": "1",  # what builds torchmill is here
        "NO_COLOR": "1",
    }
    return HostedRunner(tmp_path_factory.mktemp("github"), env)


@pytest.mark.long
def test_shares_of_which_one_dies_and_a_job_whose_time_is_up_end_with_the_wheels(
    github: HostedRunner,
) -> None:
    meetings: dict[str, Any] = {"first/share/build 2/3": None, "first/build/build": {"until": "1s"}}
    github.meet = lambda name: meetings.get(name, {})
    ran = github.run_workflow(
        "build.yml", tag="v1.0.0", packages="wheel vision", pythons=THIS, shards=3
    )
    assert (ran.result, ran.outputs) == ("success", {"any": "true"}), github.log
    shares = [f"first/share/build {number}/3" for number in (1, 2, 3)]
    assert github.machines == ["list", *shares, "first/build/build", "first/relay/build"], (
        github.log
    )
    parts = {f"parts-{CELL}-1", f"parts-{CELL}-3"}
    assert github.artifacts.keys() - {f"parts-{CELL}-wheels"} == {*parts, f"wheels-{CELL}"}
    assert "share 1/3 is made" in github.log
    assert "parts: 1/3, 3/3\n" in github.log
    assert "the time of --until is up" in github.log
    wheels = [path.name for path in sorted(github.artifacts[f"wheels-{CELL}"].glob("*.whl"))]
    assert [name.split("-")[0] for name in wheels] == ["tinytorch", "tinyvision"]
    assert [line.split(" ")[1].strip("`") for line in github.summary.splitlines()] == wheels

    indexed = github.run_workflow("index.yml")
    assert indexed.result == "success", github.log
    pages = github.artifacts["pages"]
    assert {path.name for path in pages.rglob("*.whl")} == {*wheels}
    assert (pages / "tinytorch" / "index.html").is_file()


@pytest.mark.long
def test_where_no_job_goes_on_a_build_whose_time_is_up_has_failed(github: HostedRunner) -> None:
    before = len(github.machines)
    github.meet = lambda _: {"until": "1s"}
    ran = github.run_workflow(
        "build-cell.yml", runner="r", tag="v1.0.0", sessions=f"wheel-{THIS}-cpu", shares="[1]", relays=0, cache="",
        save=True,
    )  # fmt: skip
    assert ran.result == "failure"
    assert github.machines[before:] == ["build/build"]


@pytest.mark.long
def test_a_family_is_built_for_a_torch_that_appears_and_indexed_although_one_fails(
    tmp_path: Path, envs: Path
) -> None:
    require_programs()
    configs = copy_sample_facts(tmp_path)
    index = Index()
    add_package(configs, index, "bad", line=ERROR_LINE)
    add_package(configs, index, "one")
    add_package(configs, index, "two", imports='["tiny-one"]')
    with serving(index):
        env = {
            "TORCHMILL_CONFIGS": str(configs),
            "NOX_ENVDIR": str(envs),
            "PIP_CACHE_DIR": str(envs.with_name("pip")),
            "PIP_NO_BUILD_ISOLATION": "1",
            "PIP_EXTRA_INDEX_URL": package_index.configured_index(),
            "PIP_INDEX_URL": index.url,
            "NO_COLOR": "1",
        }
        github = HostedRunner(tmp_path / "github", env)
        inputs: dict[str, Any] = {
            "packages": "tiny-bad tiny-two",
            "pythons": THIS,
            "shards": 2,
            "pages": True,
        }
        ran = github.run_workflow("new-torch.yml", **inputs)
        assert (ran.result, github.machines) == ("success", ["ask"]), "nothing is new"

        put_torch(index, "1.2.0")
        ran = github.run_workflow("new-torch.yml", **inputs)
    assert ran.result == "failure", github.log
    jobs = [name for name in github.machines if name.startswith("build/")]
    shares = [f"build/share/build {number}/2" for number in (1, 2)]
    assert jobs == [*shares, "build/build/build", *shares, "build/build/build"], github.log
    assert github.machines[-2:] == ["index/index", "remember"]
    wheels = {path.name.split("-")[0] for path in github.artifacts["pages"].rglob("*.whl")}
    assert wheels == {"tiny_one", "tiny_two"}, github.log
    assert ERROR_LINE in github.log


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("inputs.shard && 'a' || 'b'", "b"),
        ("!inputs.shard && needs.build.outputs.more", "true"),
        ("needs.absent.outputs.more == 'true'", False),
        ("startsWith(inputs.sessions, 'wheel-') && inputs.relays > 1", True),
        ("join(needs.*.result, ' ')", "success skipped"),
        ("fromJSON('[1, 2]')", [1, 2]),
    ],
)
def test_the_stand_in_reads_expressions_as_github_does(text: str, expected: object) -> None:
    needs = {
        "build": {"result": "success", "outputs": {"more": "true"}},
        "share": {"result": "skipped"},
    }
    values = {"inputs": {"shard": "", "sessions": "wheel-3.10-cpu", "relays": 2}, "needs": needs}
    assert evaluate(text, values) == expected
    assert filled(f"${{{{ {text} }}}}", values) == expected


def test_the_stand_in_runs_nothing_after_a_failure_but_what_asks_for_it() -> None:
    for condition in ("", "'a'"):
        assert not holds(condition, {}, failed=True), condition
    for condition in ("always()", "${{ !cancelled() }}", "failure()"):
        assert holds(condition, {}, failed=True), condition
