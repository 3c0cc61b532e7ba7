"""Who has built a cell before: upstream, others, nobody; and what is ruled out."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.refusals import refused
from torchmill.config import facts_reader
from torchmill.config.costs import MeasuredRun
from torchmill.config.facts import Facts
from torchmill.config.release_lookup import find_release, paired_release
from torchmill.plan import matrix
from torchmill.plan.cell import Cell
from torchmill.plan.trial import find_trial, is_merely_untried, nearest_tried


def cell(facts: Facts, version: str, named: str, arch: str = "x86_64") -> Cell:
    release, (python, variant) = find_release(facts, "torch", version), named.split("-")
    return next(
        one
        for one in matrix.release_grid(facts, release)
        if (one.build.python, one.build.variant, one.build.arch) == (python, variant, arch)
    )


@pytest.mark.parametrize(
    ("version", "named", "arch", "standing"),
    [
        ("2.4.1", "3.12-cu121", "x86_64", "wheel"),
        ("2.4.1", "3.12-cpu", "arm64", "wheel"),
        ("2.4.1", "3.12-cu124", "aarch64", "tried"),  # official, and no index is known to have it
        ("1.9.0", "3.8-cu111", "x86_64", "tried"),
        ("1.9.0", "3.8-cu112", "x86_64", "tried"),  # by conda-forge
        ("1.8.2", "3.8-cu102", "x86_64", "tried"),  # a release without any wheel on PyPI
        ("2.4.1", "3.12-cu113", "x86_64", "untried"),  # older than any that upstream used
        ("2.4.1", "3.12-cu126", "x86_64", "untried"),  # newer
        ("2.4.1", "3.12-cu122", "x86_64", "untried"),  # between two that upstream used
        ("2.4.1", "3.12-cu121", "aarch64", "untried"),  # which upstream used for x86_64 alone
        ("1.13.1", "3.11-cpu", "aarch64", "untried"),  # a Python without a wheel for that machine
        ("1.9.1", "3.9-cpu", "aarch64", "untried"),  # no wheels at all
        ("2.4.1", "3.14-cu121", "x86_64", "untried"),  # beyond the facts' bounds
        ("2.5.1", "3.12-cu114", "x86_64", "impossible"),
        ("2.4.1", "3.12-cu102", "x86_64", "impossible"),
    ],
)
def test_tried_untried_and_impossible_are_told_apart(
    shipped: Facts, version: str, named: str, arch: str, standing: str
) -> None:
    assert find_trial(shipped, cell(shipped, version, named, arch)).standing == standing


def test_what_is_tried_has_a_source_and_what_is_not_says_what_upstream_used(shipped: Facts) -> None:
    tried = find_trial(shipped, cell(shipped, "1.9.0", "3.8-cu112"))
    assert tried.source.startswith("conda-forge/")
    official = find_trial(shipped, cell(shipped, "2.4.1", "3.12-cu121"))
    assert official.source == "build_configs/releases/2.4.1.toml"
    untried = find_trial(shipped, cell(shipped, "2.4.1", "3.12-cu113"))
    assert (untried.source, "upstream used CUDA 11.8, 12.1, 12.4" in untried.text) == ("", True)


def test_a_build_of_ones_own_counts(shipped: Facts) -> None:
    wanted = cell(shipped, "2.4.1", "3.12-cu122")
    run = MeasuredRun("torch", "2.4.1", "cu122", "this machine", "compile", "torch-2.4.1.whl")
    assert find_trial(shipped, wanted, [run]).standing == "tried"
    assert find_trial(shipped, wanted, [replace(run, release="2.4.0")]).standing == "untried"
    assert find_trial(shipped, wanted, [replace(run, arch="aarch64")]).standing == "untried"


def test_every_trial_that_is_recorded_names_a_cell_that_is_possible(shipped: Facts) -> None:
    for run in shipped.runs:
        cells = [
            one
            for release in shipped.releases[run.package]
            if release.version == run.release
            for one in matrix.possible_cells(shipped, release, run.arch)
        ]
        assert run.variant in {one.build.variant for one in cells}, run.source


def test_a_toolkit_of_an_extension_is_not_tried_because_that_of_torch_is(shipped: Facts) -> None:
    release = paired_release(shipped, "mamba-ssm", find_release(shipped, "torch", "2.4.1"))
    assert release
    cells = {one.build.variant: one for one in matrix.possible_cells(shipped, release, "x86_64")}
    assert find_trial(shipped, cells["cu121"]).standing == "untried"


def test_a_package_beside_torch_is_not_tried_on_a_machine_because_torch_is(shipped: Facts) -> None:
    torch = find_release(shipped, "torch", "2.4.1")
    release = paired_release(shipped, "torchvision", torch)
    assert release

    def standing(variant: str, arch: str) -> str:
        cells = {one.build.variant: one for one in matrix.possible_cells(shipped, release, arch)}
        return find_trial(shipped, cells[variant]).standing

    assert (standing("cu124", "x86_64"), standing("cu124", "aarch64")) == ("wheel", "untried")


def test_the_nearest_toolkit_that_was_tried(shipped: Facts) -> None:
    def near(variant: str) -> str | None:
        found = nearest_tried(shipped, cell(shipped, "2.4.1", f"3.12-{variant}"), lambda _: True)
        return found.build.variant if found else None

    assert (near("cu123"), near("cu113"), near("cu126"), near("cpu")) == (
        "cu121",
        "cu118",
        "cu124",
        None,
    )


def test_what_is_only_untried_is_not_called_impossible(shipped: Facts) -> None:
    assert is_merely_untried(cell(shipped, "2.4.1", "3.14-cu121"))
    assert not is_merely_untried(cell(shipped, "2.4.1", "3.14-cu102")), (
        "one of its reasons is proven"
    )
    assert not is_merely_untried(cell(shipped, "2.4.1", "3.12-cu121"))


def test_an_extension_counts_as_tried_where_its_own_project_built_it(shipped: Facts) -> None:
    def standing(version: str, named: str, arch: str = "x86_64") -> str:
        torch = find_release(shipped, "torch", version)
        release = paired_release(shipped, "torch-scatter", torch)
        assert release is not None
        python, variant = named.split("-")
        grid = matrix.release_grid(shipped, release)
        wanted = (python, variant, arch)
        one = next(
            one for one in grid if (one.build.python, one.build.variant, one.build.arch) == wanted
        )
        return find_trial(shipped, one).standing

    assert standing("2.1.1", "3.9-cu121") == "tried"
    assert standing("1.11.0", "3.8-cu102") == "tried"
    assert standing("2.4.1", "3.11-cpu", "arm64") == "tried"
    assert standing("2.1.1", "3.9-cu122") == "untried"


def test_a_variant_that_nobody_knows_is_no_trial(configs: Path) -> None:
    file = configs / "releases" / "2.0.0.toml"
    text = file.read_text(encoding="utf-8")
    file.write_text(
        text.replace("[base.cuda]", 'tried = { cu999 = "somebody" }\n\n[base.cuda]'),
        encoding="utf-8",
    )
    with refused("facts-invalid") as caught:
        facts_reader.read_facts(configs)
    assert "'tried' names 'cu999'" in str(caught.value)
