"""Upstream's tests on two wheels: what is run, what becomes of tests that never come back, what is compared."""

import io
import json
import shutil
import sys
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from textwrap import dedent

import pytest

from tests.support.contexts import HOST, job
from tests.support.documents import assert_fits
from tests.support.refusals import refused
from tests.support.sampled import THIS, Sample, fetched
from tools.proof import compared_wheels, outcomes, speed, test_files
from tools.proof.compared_wheels import ComparedWheel, published_side
from tools.proof.outcomes import Outcome, compare, describe
from tools.proof.upstream_run import UpstreamRun, UpstreamTests
from torchmill.config.build import Build
from torchmill.config.facts import Facts
from torchmill.config.release_lookup import find_release
from torchmill.core.console import ProgressDisplay
from torchmill.core.paths import Layout
from torchmill.deliver.products import VerifiedWheel
from torchmill.plan import build_plan, cell_lookup, matrix
from torchmill.plan.build_options import Options
from torchmill.plan.plan import OfficialComparison, Shortfall

MIB = 2**20
UPSTREAM = """
    import os, time
    from pathlib import Path

    import pytest

    def test_good(): ...

    def test_bad():
        raise ValueError("wrong by far")

    def test_flaky():
        mark = Path("mark")
        if not mark.exists():
            mark.touch()
            raise ValueError("once")

    def test_hangs():
        time.sleep(600)

    def test_dies():
        os._exit(7)

    def test_takes_all_memory():
        held = b"x" * (900 * 2**20)
        time.sleep(600)

    @pytest.mark.skip(reason="has no MKL")
    def test_skipped(): ...

    @pytest.mark.parametrize("number", range(400))
    def test_many(number): ...
"""


def run_tests(
    folder: Path,
    text: str,
    share: float = 1.0,
    seconds: float = 120.0,
    always: tuple[str, ...] = (),
) -> dict[str, Outcome]:
    (folder / "test").mkdir(parents=True, exist_ok=True)
    (folder / "test" / "test_all.py").write_text(dedent(text))
    tests = UpstreamTests(
        (), "test", "test", {"test_all.py": share}, always=always, seconds=seconds
    )
    bar = ProgressDisplay(io.StringIO()).start_bar("tests")
    run = UpstreamRun(Path(sys.executable), folder, tests, 600 * MIB, folder / "log", bar)
    return {test.rpartition("::")[2]: outcome for test, outcome in run.outcomes(2).items()}


@pytest.mark.long
def test_what_hangs_dies_or_takes_all_memory_is_ended_by_name_and_the_rest_runs(
    tmp_path: Path,
) -> None:
    by_name = run_tests(tmp_path / "ours", UPSTREAM, seconds=15.0)
    assert by_name["test_good"] == Outcome("passed")
    assert by_name["test_bad"] == Outcome("failed", "ValueError: wrong by far")
    assert by_name["test_flaky"] == Outcome("passed", "failed once: ValueError: once")
    assert by_name["test_skipped"] == Outcome("skipped", "Skipped: has no MKL")
    assert by_name["test_hangs"].result == "ended"
    assert "hangs" in by_name["test_hangs"].why
    assert by_name["test_dies"] == Outcome("ended", "the process ended with exit code 7")
    assert "600.0 MiB of memory" in by_name["test_takes_all_memory"].why
    assert sum(name.startswith("test_many") for name in by_name) == 400


def test_a_share_is_drawn_by_names(tmp_path: Path) -> None:
    many = "import pytest\n@pytest.mark.parametrize('number', range(400))\ndef test_many(number): ...\n"
    first, second = (run_tests(tmp_path / name, many, 0.1) for name in ("one", "two"))
    assert first == second
    assert 20 < len(first) < 60
    more = run_tests(tmp_path / "three", many, 0.1, always=("test_many[33",))
    assert (
        set(more) - set(first)
        <= {f"test_many[{number}]" for number in (33, *range(330, 340))}
        <= set(more)
    )


def test_what_a_plan_lacks_explains_the_tests_that_need_it(
    small_facts: Facts, tmp_path: Path
) -> None:
    shortfall = Shortfall("ITT", "slow", "bring it")
    plan = replace(job(small_facts, tmp_path, HOST).plan, official=OfficialComparison((shortfall,)))
    skipped = {"ITT": ("emit_itt",), "FBGEMM": ("fb_fc",)}
    tests = UpstreamTests((), "test", explained={"other": "known"}, skipped=skipped)
    assert tests.explained_for(plan) == {"other": "known", "emit_itt": "built without ITT"}


def test_many_tests_that_fail_for_one_reason_take_a_few_lines() -> None:
    ours = make_outcomes(**{f"t{number}": "skipped" for number in range(100)}, other="failed")
    comparison = compare(
        ours, make_outcomes(**{f"t{number}": "passed" for number in range(100)}), {}
    )
    lines = list(describe({**comparison, "wheel": "ours", "against": "theirs", "unlike": []}))
    assert sum(line.startswith("  t") for line in lines) == 5
    assert "  and 95 more, for the same reason" in lines
    assert any(line.startswith("  other: failed") for line in lines)


def test_a_file_that_cannot_be_collected_is_named(tmp_path: Path) -> None:
    (only,) = run_tests(tmp_path / "ours", "import nothing_of_that_name").values()
    assert only.result == "not collected"
    assert "nothing_of_that_name" in only.why


BETWEEN = """
    import os, pytest

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logfinish(nodeid):
        if "[7]" in nodeid:
            os._exit(9)
"""


def test_a_process_that_dies_between_two_tests_is_named_and_the_rest_runs(tmp_path: Path) -> None:
    """As one does whose other threads crash."""
    many = (
        "import pytest\n@pytest.mark.parametrize('number', range(20))\ndef test_many(number): ...\n"
    )
    (tmp_path / "test").mkdir()
    (tmp_path / "test/conftest.py").write_text(dedent(BETWEEN))
    by_name = run_tests(tmp_path, many)
    assert by_name.pop("test_all.py") == Outcome("ended", "the process ended with exit code 9")
    assert by_name == {f"test_many[{number}]": Outcome("passed") for number in range(20)}


def make_outcomes(**results: str) -> dict[str, Outcome]:
    return {test: Outcome(result, "why") for test, result in results.items()}


def test_what_is_unlike_the_published_wheel_is_the_result() -> None:
    ours = make_outcomes(a="passed", b="failed", c="failed", d="skipped", e="ended", f="skipped")
    ours |= make_outcomes(h="skipped")
    theirs = make_outcomes(
        a="failed", b="failed", c="passed", d="passed", e="passed", f="skipped", g="passed"
    )
    theirs |= make_outcomes(h="failed", i="ended")
    comparison = compare(ours, theirs, {"e": "known since 1.13"})
    assert list(comparison["alone"]) == ["c", "d", "e", "g"]
    assert comparison["alone"]["e"]["explained"] == "known since 1.13"
    assert comparison[outcomes.BOTH] == ["b"]
    assert comparison[outcomes.THEIRS] == ["a", "h", "i"]
    lines = list(describe({"wheel": "ours", "against": "theirs", "unlike": [], **comparison}))
    assert "not as on the published wheel: 4, of which 1 are explained" in lines
    assert list(compare(ours, {}, {})["alone"]) == ["b", "c", "e"], (
        "where it cannot be had, all that fail"
    )


def chosen(
    shipped: Facts, python: str, arch: str, installed: Collection[str], cuda: str | None = None
) -> ComparedWheel:
    release = find_release(shipped, "torch", "v1.13.1")
    build = Build(
        "torch", "wheel", python, f"cu{cuda.replace('.', '')}" if cuda else "cpu", arch, cuda
    )
    return published_side(shipped, matrix.make_cell(shipped, release, build), installed)


@pytest.mark.parametrize(
    ("name", "file"), [("wheel-3.10-cpu", "test_torch.py"), ("vision-3.10-cpu", "test_ops.py")]
)
def test_the_shipped_facts_say_what_judges_a_wheel_and_what_is_timed(
    shipped: Facts, tmp_path: Path, name: str, file: str
) -> None:
    cell = cell_lookup.find_cell(shipped, name, "x86_64", find_release(shipped, "torch", "v1.13.1"))
    plan = build_plan.compute_plan(shipped, cell, HOST, Options())
    verified = VerifiedWheel(
        Layout(tmp_path, tmp_path), shipped, cell, plan, tmp_path / plan.wheel.file_name, {}
    )
    tests = test_files.find_tests(verified)
    assert 0 < tests.files[file] <= 1
    assert all(why for why in tests.explained.values())
    if name.startswith("wheel"):
        assert len(speed.find_trial(verified).cases) >= 40
    else:
        with refused("no-speed-cases"):
            speed.find_trial(verified)


def test_the_nearest_published_wheel_is_chosen(shipped: Facts) -> None:
    same = chosen(shipped, "3.10", "x86_64", {"3.10"}, "11.7")
    assert (same.packages, same.differences) == (("torch===1.13.1",), ())
    assert "CUDA 11.7" in chosen(shipped, "3.10", "x86_64", {"3.10"}).differences[0]
    other = chosen(shipped, "3.11", "aarch64", {"3.8", "3.10", "3.11"})
    assert other.python == "3.10"
    assert "PyPI has none for 3.11" in other.differences[0]
    with refused("no-published-wheel") as caught:
        chosen(shipped, "3.11", "aarch64", {"3.11"})
    assert "only for Python 3.7, 3.8, 3.9, 3.10, and none of these is installed here" in str(
        caught.value
    )
    assert chosen(shipped, "3.9", "aarch64", {"3.10", "3.8"}).python == "3.9"


def test_of_two_published_wheels_that_are_equally_near_the_older_pythons_is_chosen(
    shipped: Facts, monkeypatch: pytest.MonkeyPatch
) -> None:
    pythons = ("3.9", "3.11")
    monkeypatch.setattr(compared_wheels, "wheel_pythons", lambda *_: pythons)
    assert chosen(shipped, "3.10", "x86_64", {"3.11", "3.9"}).python == "3.9"


@pytest.mark.parametrize(
    ("requirements", "exact", "expected"),
    [
        (["numpy==1.24.4", "numpydoc==1.5", "numpy-stl"], True, ["numpy==1.24.4"]),
        (["numpy==1.24.4", "setuptools==65.1.0"], False, ["numpy==1.*"]),
        (["numpy<2"], False, ["numpy<2"]),
        (["typing-extensions"], False, []),
    ],
)
def test_both_sides_have_numpy_of_the_plan(
    requirements: list[str], exact: bool, expected: list[str]
) -> None:
    assert compared_wheels.numpy_requirements(requirements, exact=exact) == expected


@pytest.fixture
def sample(tmp_path: Path, upstream: Path, envs: Path, cache: Path) -> Sample:
    return fetched(tmp_path, upstream, envs, cache)


@pytest.mark.long
def test_a_wrong_kernel_and_a_switch_that_is_off_are_caught_by_name(sample: Sample) -> None:
    """Through the real nox: the right wheel stands for the published one."""
    assert sample.nox("-s", f"wheel-{THIS}-cpu").returncode == 0
    (name,) = sample.wheels()
    right = sample.folder / "published" / name
    right.parent.mkdir()
    shutil.copy2(sample.home / "dist" / name, right)
    fault = 's/add(left, right)/add(left, -right)/", "python/module.cpp"'
    sample.add_rule(f'reason = "a fault"\nsource = "here"\nprepare = [["sed", "-i", "{fault}]]')
    facts = sample.configs / "packages" / "tinytorch.toml"
    facts.write_text(
        facts.read_text().replace('checks = "sample"', 'checks = "package"'), encoding="utf-8"
    )
    words = ("--set", "USE_TINY_FAST=0", f"--published={right}")
    assert sample.nox("-s", f"wheel-{THIS}-cpu", "--", *words[:2]).returncode == 0
    done = sample.nox("-s", f"check-{THIS}-cpu", "--", *words)
    assert done.returncode != 0
    said = done.stdout + done.stderr
    assert "TestArithmetic::test_add: failed: AssertionError" in said
    assert "TestFit::test_fast: skipped, and passes on the published wheel" in said
    assert "Traceback" not in said
    told = sample.manifest(name)["upstream_tests"]
    assert [test.rpartition("::")[2] for test in told["alone"]] == ["test_add", "test_fast"]
    assert told["results"] == {"passed": 3, "failed": 1, "skipped": 1}
    gone = sample.nox("-s", f"check-{THIS}-cpu", "--", *words[:2], "--published", "tinytorch===9.9")
    assert "tinytorch===9.9 cannot be had" in gone.stdout + gone.stderr
    timed = sample.nox("-s", f"speed-{THIS}-cpu", "--", *words)
    assert timed.returncode == 0, timed.stderr
    assert "does not run in this release: what it lacks" in timed.stderr
    logs = sample.home / ".torchmill" / "logs"
    assert {path.suffix for path in logs.glob("*speed*")} >= {".png", ".json"}
    for session in ("check", "speed"):
        report = json.loads((logs / f"v1.0.0-{session}-wheel-{THIS}-cpu.json").read_text("utf-8"))
        assert_fits(report, f"{session}_report")
