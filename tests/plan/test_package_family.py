"""A family of packages for one torch: its order, what is refused and why, and its results."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from tests.support.refusals import refused
from torchmill.config.facts import Facts
from torchmill.config.release_lookup import find_release
from torchmill.plan.build_options import NO_OPTIONS
from torchmill.plan.family_results import (
    SessionEnd,
    count_states,
    describe_cells,
    first_error,
    with_end,
)
from torchmill.plan.new_torch import IndexTorch
from torchmill.plan.package_family import (
    FamilyCell,
    choose_family,
    describe_base,
    group_jobs,
    obstacle_of,
    plan_family,
    settled_records,
    with_records,
)

ON_INDEX = IndexTorch("2.15.0", ("3.12", "3.13"))


def plan_cells(
    facts: Facts,
    *names: str,
    pythons: Sequence[str] = ("3.12",),
    variants: Sequence[str] = (),
    torch: str = "2.15.0",
) -> list[FamilyCell]:
    base = describe_base(facts, find_release(facts, "torch", torch), ON_INDEX, "x86_64")
    packages = choose_family(facts, names)
    return plan_family(
        facts, packages, base, pythons=pythons, variants=variants, options=NO_OPTIONS
    )


def states(cells: Sequence[FamilyCell]) -> list[tuple[str, str]]:
    return [(cell.identifier, cell.state) for cell in cells]


def test_what_a_package_imports_is_built_before_it(shipped: Facts) -> None:
    cells = plan_cells(shipped, "torch-sparse", "Torch_Scatter")
    assert states(cells) == [("scatter-3.12-cu132", "pending"), ("sparse-3.12-cu132", "pending")]
    assert cells[1].needs == ("scatter-3.12-cu132",)
    assert cells[0].claim.startswith(("torch-scatter 2.1.2 was built", "nobody is known"))


def test_without_names_the_family_is_all_that_declare_their_releases(shipped: Facts) -> None:
    names = [package.name for package in choose_family(shipped, [])]
    assert {"flash-attn", "torch-sparse"} <= {*names}
    assert not {"torch", "torchvision"} & {*names}
    assert names.index("torch-scatter") < names.index("torch-sparse")


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("torch", "contradictory-options"),
        ("torch-scater", "unknown-package"),
        ("scatter-3.12-cpu", "unknown-package"),
    ],
)
def test_other_names_are_refused(shipped: Facts, name: str, code: str) -> None:
    with refused(code):
        choose_family(shipped, [name])


def test_two_pythons_and_two_variants_in_any_spelling(shipped: Facts) -> None:
    cells = plan_cells(
        shipped, "torch-scatter", pythons=["py312", "3.13"], variants=["cpu", "cuda13.2"]
    )
    assert states(cells) == [
        ("scatter-3.12-cpu", "pending"),
        ("scatter-3.12-cu132", "pending"),
        ("scatter-3.13-cpu", "pending"),
        ("scatter-3.13-cu132", "pending"),
    ]


@pytest.mark.parametrize(
    ("names", "python", "variant", "reason"),
    [
        (["flash-attn"], "3.12", "cpu", "flash-attn is CUDA kernels and nothing else"),
        (["torch-scatter"], "3.11", "cpu", "no torch 2.15.0 for Python 3.11 on x86_64, but for"),
        (["torch-scatter"], "3.12", "cu130", "built for cu132, and not for cu130"),
        (["torch-scatter"], "3.12", "cu999", "'cu999' is no toolkit"),
        (["torch-scatter"], "3.12", "rocm", "'rocm' is no toolkit"),
    ],
)
def test_a_cell_that_cannot_be_built_is_refused_with_the_reason(
    shipped: Facts, names: list[str], python: str, variant: str, reason: str
) -> None:
    (cell,) = plan_cells(shipped, *names, pythons=[python], variants=[variant])
    assert cell.state == "refused"
    assert reason in cell.reason


def test_a_toolkit_that_the_facts_lack_is_named(shipped: Facts) -> None:
    facts = replace(
        shipped,
        toolkits=tuple(toolkit for toolkit in shipped.toolkits if toolkit.version != "13.2"),
    )
    (cell,) = plan_cells(facts, "torch-scatter")
    assert cell.state == "refused"
    assert "built with CUDA 13.2, which toolkits.toml does not have" in cell.reason


def test_a_package_without_a_release_for_the_torch_is_refused_and_what_needs_it(
    shipped: Facts,
) -> None:
    releases = {**shipped.releases, "torch-scatter": shipped.releases["torch-scatter"][:1]}
    scatter, sparse = plan_cells(replace(shipped, releases=releases), "torch-sparse")
    assert scatter.state == sparse.state == "refused"
    assert "torch-scatter 2.1.2 goes with torch" in scatter.reason
    assert sparse.reason.startswith("it needs scatter-3.12-cu132, which cannot be built: ")


def test_what_needs_each_other_is_one_job(shipped: Facts) -> None:
    cells = plan_cells(
        shipped, "flash-attn", "torch-sparse", "torch-cluster", pythons=["3.12", "3.13"]
    )
    assert [job.sessions for job in group_jobs(cells)] == [
        "flash-3.12-cu132",
        "flash-3.13-cu132",
        "scatter-3.12-cu132 sparse-3.12-cu132",
        "scatter-3.13-cu132 sparse-3.13-cu132",
        "cluster-3.12-cu132",
        "cluster-3.13-cu132",
    ]


def test_a_failure_skips_what_needs_it_and_nothing_else(shipped: Facts) -> None:
    scatter, sparse = plan_cells(shipped, "torch-sparse")
    failed = replace(scatter, state="failed")
    assert obstacle_of(sparse, {scatter.identifier: failed}) == (
        "it needs scatter-3.12-cu132, which is failed"
    )
    assert obstacle_of(sparse, {scatter.identifier: replace(scatter, state="built")}) == ""


def test_results_that_count_are_recorded_and_read_again(shipped: Facts) -> None:
    cells = plan_cells(shipped, "flash-attn", "torch-sparse", "torch-cluster")
    flash, scatter, sparse, cluster = cells
    ended = [
        replace(flash, state="failed", reason="error[compile-failed]: no"),
        replace(scatter, state="unfinished"),
        replace(sparse, state="skipped"),
        replace(cluster, state="built", wheel="/dist/a.whl"),
    ]
    records = settled_records(ended)
    assert records.keys() == {flash.identifier, cluster.identifier}
    again = with_records(cells, records)
    assert [cell.state for cell in again] == ["failed", "pending", "pending", "built"]
    assert (again[0].reason, again[3].wheel) == ("error[compile-failed]: no", "/dist/a.whl")
    strange = {flash.identifier: {"state": "no state"}}
    assert with_records(cells, strange)[0].state == "pending"


COMPILE = (
    "nox > Session flash-3.12-cu132 aborted: error[compile-failed]: flash: a.cu:3: no such thing"
)
NETWORK = "error[host-unreachable]: pypi.org cannot be reached"


@pytest.mark.parametrize(
    ("code", "lines", "state", "reason"),
    [
        (0, [COMPILE], "built", ""),
        (8, ["nox > a", COMPILE, NETWORK], "failed", "error[compile-failed]: flash: a.cu:3: no"),
        (6, [NETWORK], "unfinished", NETWORK),
        (8, ["nox > b", "Killed", " "], "unfinished", "Killed"),
        (1, [], "unfinished", "it printed nothing"),
    ],
)
def test_only_errors_about_the_package_count_as_its_failure(
    shipped: Facts, code: int, lines: list[str], state: str, reason: str
) -> None:
    (cell,) = plan_cells(shipped, "flash-attn")
    ended = with_end(cell, SessionEnd(code, lines))
    assert ended.state == state
    assert ended.reason.startswith(reason)


def test_the_summary_has_a_line_for_each_cell_and_the_numbers(shipped: Facts) -> None:
    scatter, sparse = plan_cells(shipped, "torch-sparse")
    ended = [
        replace(scatter, state="failed", reason=str(first_error([COMPILE]))),
        replace(sparse, state="skipped", reason="it needs scatter"),
    ]
    first, second, numbers = describe_cells(ended)
    assert "scatter-3.12-cu132" in first
    assert "error[compile-failed]" in first
    assert second.endswith("it needs scatter")
    assert numbers == count_states(ended) == "1 failed, 1 skipped"
