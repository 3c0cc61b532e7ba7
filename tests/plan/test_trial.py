"""Who has built a cell before: upstream, others, nobody; and which cells are ruled out."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.refusals import refused
from torchmill.config import facts_reader
from torchmill.config.costs import MeasuredRun
from torchmill.config.facts import Facts
from torchmill.config.release import Release
from torchmill.config.release_lookup import find_release, paired_release
from torchmill.plan import matrix
from torchmill.plan.cell import Cell
from torchmill.plan.trial import find_trial, is_merely_untried, nearest_tried


def find_cell(facts: Facts, release: Release, name: str, arch: str = "x86_64") -> Cell:
    """Return the cell of a release that "3.12-cu121" names, possible or not."""
    python, variant = name.split("-")
    for cell in matrix.release_grid(facts, release):
        build = cell.build
        if (build.python, build.variant, build.arch) == (python, variant, arch):
            return cell
    raise LookupError(name)


def torch_cell(facts: Facts, version: str, name: str, arch: str = "x86_64") -> Cell:
    return find_cell(facts, find_release(facts, "torch", version), name, arch)


def partner(facts: Facts, package: str, torch: str) -> Release:
    """Return the release of a package that goes with a version of torch."""
    release = paired_release(facts, package, find_release(facts, "torch", torch))
    assert release is not None
    return release


@pytest.mark.parametrize(
    ("version", "name", "arch", "standing"),
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
    shipped: Facts, version: str, name: str, arch: str, standing: str
) -> None:
    assert find_trial(shipped, torch_cell(shipped, version, name, arch)).standing == standing


def test_a_trial_has_a_source_and_an_untried_cell_names_the_toolkits_of_upstream(
    shipped: Facts,
) -> None:
    tried = find_trial(shipped, torch_cell(shipped, "1.9.0", "3.8-cu112"))
    assert tried.source.startswith("conda-forge/")
    official = find_trial(shipped, torch_cell(shipped, "2.4.1", "3.12-cu121"))
    assert official.source == "build_configs/releases/2.4.1.toml"
    untried = find_trial(shipped, torch_cell(shipped, "2.4.1", "3.12-cu113"))
    assert untried.source == ""
    assert "upstream used CUDA 11.8, 12.1, 12.4" in untried.text


def test_a_build_of_this_machine_counts(shipped: Facts) -> None:
    cell = torch_cell(shipped, "2.4.1", "3.12-cu122")
    run = MeasuredRun("torch", "2.4.1", "cu122", "this machine", "compile", "torch-2.4.1.whl")
    assert find_trial(shipped, cell, [run]).standing == "tried"
    assert find_trial(shipped, cell, [replace(run, release="2.4.0")]).standing == "untried"
    assert find_trial(shipped, cell, [replace(run, arch="aarch64")]).standing == "untried"


def test_every_trial_that_is_recorded_names_a_cell_that_is_possible(shipped: Facts) -> None:
    for run in shipped.costs.runs:
        variants: set[str] = set()
        for release in shipped.releases[run.package]:
            if release.version == run.release:
                cells = matrix.possible_cells(shipped, release, run.arch)
                variants.update(cell.build.variant for cell in cells)
        assert run.variant in variants, run.source


def test_a_toolkit_of_an_extension_is_not_tried_because_that_of_torch_is(shipped: Facts) -> None:
    release = partner(shipped, "mamba-ssm", "2.4.1")
    cells = {cell.build.variant: cell for cell in matrix.possible_cells(shipped, release, "x86_64")}
    assert find_trial(shipped, cells["cu121"]).standing == "untried"


def test_a_package_beside_torch_is_not_tried_on_a_machine_because_torch_is(shipped: Facts) -> None:
    release = partner(shipped, "torchvision", "2.4.1")

    def standing(variant: str, arch: str) -> str:
        cells = matrix.possible_cells(shipped, release, arch)
        by_variant = {cell.build.variant: cell for cell in cells}
        return find_trial(shipped, by_variant[variant]).standing

    assert standing("cu124", "x86_64") == "wheel"
    assert standing("cu124", "aarch64") == "untried"


@pytest.mark.parametrize(
    ("variant", "nearest"),
    [("cu123", "cu121"), ("cu113", "cu118"), ("cu126", "cu124"), ("cpu", None)],
)
def test_the_nearest_toolkit_that_was_tried(
    shipped: Facts, variant: str, nearest: str | None
) -> None:
    cell = torch_cell(shipped, "2.4.1", f"3.12-{variant}")
    tried = nearest_tried(shipped, cell, lambda _: True)
    assert (tried and tried.build.variant) == nearest


def test_a_cell_that_is_only_untried_is_not_called_impossible(shipped: Facts) -> None:
    assert is_merely_untried(torch_cell(shipped, "2.4.1", "3.14-cu121"))
    assert not is_merely_untried(torch_cell(shipped, "2.4.1", "3.14-cu102")), (
        "one of its reasons is proven"
    )
    assert not is_merely_untried(torch_cell(shipped, "2.4.1", "3.12-cu121"))


@pytest.mark.parametrize(
    ("torch", "name", "arch", "standing"),
    [
        ("2.1.1", "3.9-cu121", "x86_64", "tried"),
        ("1.11.0", "3.8-cu102", "x86_64", "tried"),
        ("2.4.1", "3.11-cpu", "arm64", "tried"),
        ("2.1.1", "3.9-cu122", "x86_64", "untried"),
        # Its project built it against torch 2.8.0, and is not known to have done so since.
        ("2.8.0", "3.11-cu128", "x86_64", "tried"),
        ("2.9.1", "3.11-cu128", "x86_64", "untried"),
    ],
)
def test_an_extension_counts_as_tried_if_its_own_project_built_it(
    shipped: Facts, torch: str, name: str, arch: str, standing: str
) -> None:
    cell = find_cell(shipped, partner(shipped, "torch-scatter", torch), name, arch)
    assert find_trial(shipped, cell).standing == standing


def test_an_extension_counts_as_tried_only_against_the_torch_that_it_was_built_against(
    shipped: Facts,
) -> None:
    tried = find_cell(shipped, partner(shipped, "flash-attn", "2.11.0"), "3.12-cu130")
    newer = find_cell(shipped, partner(shipped, "flash-attn", "2.13.0"), "3.12-cu130")
    assert tried.release.version == newer.release.version
    assert "built with CUDA 13.0 against torch 2.11.0" in find_trial(shipped, tried).text
    trial = find_trial(shipped, newer)
    assert trial.standing == "untried"
    assert trial.text.endswith("for x86_64 against torch 2.13.0")


def test_a_variant_that_no_fact_describes_is_no_trial(configs: Path) -> None:
    file = configs / "releases" / "2.0.0.toml"
    text = file.read_text(encoding="utf-8")
    tried = 'tried = { cu999 = "somebody" }\n\n[base.cuda]'
    file.write_text(text.replace("[base.cuda]", tried), encoding="utf-8")
    with refused("facts-invalid") as caught:
        facts_reader.read_facts(configs)
    assert "'tried' names 'cu999'" in str(caught.value)
