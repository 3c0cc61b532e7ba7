"""An extension's own tests: where they are found, what needs a GPU, and a run of which no test is left."""

import io
import json
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.support.documents import assert_fits
from tests.support.plans import LINUX, find_torch_cell
from tests.support.refusals import refused
from tools.proof import check, test_files
from tools.proof.outcomes import Outcome
from tools.proof.test_files import find_test_folder
from tools.proof.upstream_run import UpstreamRun, UpstreamTests
from torchmill.config.facts import Facts
from torchmill.core.console import ProgressDisplay
from torchmill.core.paths import Layout
from torchmill.deliver.products import ProductOptions, VerifiedWheel
from torchmill.fetch.source.source import Source
from torchmill.plan import build_plan
from torchmill.plan.build_options import NO_OPTIONS
from torchmill.wheel import dist_files

MIB = 2**20
NO_DRIVER = "Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU"
UPSTREAM = f"""
import pytest

def test_on_the_processor(): ...

def test_on_a_gpu():
    raise RuntimeError({NO_DRIVER!r})

def test_wrong():
    raise RuntimeError("the result is wrong")
"""


@pytest.fixture
def scatter(shipped: Facts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> VerifiedWheel:
    """Return a wheel of torch-scatter in a folder of its own, whose source is an empty folder."""
    return verified(shipped, tmp_path, monkeypatch, "scatter-3.11-cpu")


def verified(
    facts: Facts, folder: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> VerifiedWheel:
    """Return a wheel of a cell in a folder, whose source is the folder "source" in it."""
    cell = find_torch_cell(facts, name, "v2.15.0")
    plan = build_plan.compute_plan(facts, cell, LINUX, NO_OPTIONS)
    source = Source(
        cell.release.package,
        cell.release.version,
        cell.release.tag,
        "pypi",
        "PyPI's archive",
        None,
        folder / "source",
        verified=True,
        contents="0123456789",
    )
    monkeypatch.setattr(test_files, "load_source", lambda *_: source)
    wheel = folder / "dist" / plan.wheel.file_name
    wheel.parent.mkdir()
    dist_files.manifest_path(wheel).write_text('{"format": 2}')
    return VerifiedWheel(Layout(folder, folder), facts, cell, plan, wheel, {})


def write_tests(folder: Path, *files: str) -> None:
    for file in files:
        path = folder / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(UPSTREAM)


def test_all_tests_of_the_source_judge_an_extension(scatter: VerifiedWheel, tmp_path: Path) -> None:
    source = tmp_path / "source"
    write_tests(source, "test/test_sum.py", "test/deep/min_test.py", "test/utils.py", "test_no.py")
    folder = find_test_folder(scatter, ProductOptions())
    assert folder.files == source / "test"
    assert folder.tests.files == {"deep/min_test.py": 1.0, "test_sum.py": 1.0}
    assert folder.title == "tests of torch-scatter 2.1.2, no proven commit, contents 01234567"


def test_a_source_without_tests_is_refused_with_a_place_that_has_them(
    scatter: VerifiedWheel, tmp_path: Path
) -> None:
    write_tests(tmp_path / "source", "torch_scatter/testing.py")
    with refused("no-tests-in-source") as caught:
        find_test_folder(scatter, ProductOptions())
    assert "Debian's pytorch-scatter_2.1.2.orig.tar.gz" in str(caught.value)
    assert "nox -s check-scatter-3.11-cpu -- --tests FOLDER" in str(caught.value)


@pytest.mark.parametrize("name", ["clone", "clone/test"])
def test_the_user_names_a_clone_or_its_folder_of_tests(
    scatter: VerifiedWheel, tmp_path: Path, name: str
) -> None:
    write_tests(tmp_path / "clone", "test/test_sum.py")
    folder = find_test_folder(scatter, ProductOptions(tests=str(tmp_path / name)))
    assert folder.files == tmp_path / "clone" / "test"
    assert list(folder.tests.files) == ["test_sum.py"]


def test_a_folder_of_the_user_that_is_missing_or_has_no_tests_is_refused(
    scatter: VerifiedWheel, tmp_path: Path
) -> None:
    with refused("no-such-tests"):
        find_test_folder(scatter, ProductOptions(tests=str(tmp_path / "none")))
    (tmp_path / "empty").mkdir()
    with refused("no-such-tests"):
        find_test_folder(scatter, ProductOptions(tests=str(tmp_path / "empty")))


def test_files_that_an_archive_cannot_run_are_left_out_of_it_and_not_of_a_clone(
    shipped: Facts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    xformers = verified(shipped, tmp_path, monkeypatch, "xformers-3.11-cu130")
    write_tests(tmp_path / "source", "tests/test_unbind.py", "tests/test_rmsnorm.py")
    assert list(find_test_folder(xformers, ProductOptions()).tests.files) == ["test_unbind.py"]
    cloned = find_test_folder(xformers, ProductOptions(tests=str(tmp_path / "source")))
    assert list(cloned.tests.files) == ["test_rmsnorm.py", "test_unbind.py"]


def run_files(folder: Path, files: Mapping[str, str], *, skips: bool) -> dict[str, Outcome]:
    for name, text in files.items():
        write_tests(folder, f"tests/{name}")
        (folder / "tests" / name).write_text(text)
    tests = UpstreamTests((), "test", "tests", dict.fromkeys(files, 1.0))
    bar = ProgressDisplay(io.StringIO()).start_bar("tests")
    run = UpstreamRun(
        Path(sys.executable), folder, tests, 600 * MIB, folder / "log", bar, skips_gpu_tests=skips
    )
    return run.outcomes(1)


def test_what_fails_for_lack_of_a_gpu_is_skipped_and_nothing_else_is(tmp_path: Path) -> None:
    files = {
        "test_all.py": UPSTREAM,
        "test_import.py": f"raise RuntimeError({NO_DRIVER!r})\n",
        "test_skip.py": "import pytest\npytest.skip('no GPU', allow_module_level=True)\n",
    }
    outcomes = run_files(tmp_path / "ours", files, skips=True)
    assert {test.partition("/")[2]: outcome.result for test, outcome in outcomes.items()} == {
        "test_all.py::test_on_the_processor": "passed",
        "test_all.py::test_on_a_gpu": "skipped",
        "test_all.py::test_wrong": "failed",
        "test_import.py": "skipped",
        "test_skip.py": "skipped",
    }
    needs_gpu = outcomes["tests/test_all.py::test_on_a_gpu"].why
    assert needs_gpu.startswith("needs a GPU: RuntimeError: Found no NVIDIA driver")
    of_torch = run_files(tmp_path / "torch", {"test_all.py": UPSTREAM}, skips=False)
    assert of_torch["tests/test_all.py::test_on_a_gpu"].result == "failed"


def checked(
    scatter: VerifiedWheel, monkeypatch: pytest.MonkeyPatch, outcomes: Mapping[str, Outcome]
) -> str:
    write_tests(scatter.layout.root / "source", "test/test_sum.py")
    monkeypatch.setattr(check, "_run_tests", lambda *_: dict(outcomes))
    return check.check_wheel(scatter, ProductOptions())


@pytest.mark.parametrize(
    "outcomes",
    [{}, {"a": Outcome("skipped", "needs a GPU"), "b": Outcome("skipped", "needs a GPU")}],
)
def test_a_run_in_which_no_test_ran_fails(
    scatter: VerifiedWheel, monkeypatch: pytest.MonkeyPatch, outcomes: dict[str, Outcome]
) -> None:
    with refused("no-test-ran") as caught:
        checked(scatter, monkeypatch, outcomes)
    assert f"{len(outcomes)} were skipped" in str(caught.value)
    assert "upstream_tests" not in dist_files.read_manifest(scatter.wheel)


def test_the_results_of_an_extension_alone_are_in_its_manifest(
    scatter: VerifiedWheel, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcomes = {"a": Outcome("passed"), "b": Outcome("skipped", "needs a GPU")}
    text = checked(scatter, monkeypatch, outcomes)
    assert "2 tests, 1 passed, 1 skipped\n" in text
    assert "published" not in text
    record = dist_files.read_manifest(scatter.wheel)["upstream_tests"]
    assert record["results"] == {"passed": 1, "skipped": 1}
    assert (record["against"], record["published"], record["alone"]) == ("", {}, {})
    assert record["tests"].startswith("tests of torch-scatter 2.1.2")
    report = next(scatter.layout.logs.glob("*-check-scatter-*.json"))
    assert_fits(json.loads(report.read_text(encoding="utf-8")), "check_report")


def test_a_test_of_an_extension_that_fails_fails_the_session(
    scatter: VerifiedWheel, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcomes = {"a": Outcome("passed"), "b": Outcome("failed", "ValueError: wrong")}
    with refused("upstream-tests-fail") as caught:
        checked(scatter, monkeypatch, outcomes)
    assert "b: failed: ValueError: wrong" in str(caught.value)
    with refused("upstream-tests-fail") as caught:
        checked(scatter, monkeypatch, {"b": Outcome("failed", "ValueError: wrong")})
    assert "none of upstream's tests passed" in str(caught.value)
