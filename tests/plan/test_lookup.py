"""From a name to a cell, and the answer to a name that has none."""

import re
from dataclasses import replace

import pytest

from tests.support.refusals import refused
from torchmill.config.facts import Facts
from torchmill.config.release_lookup import find_release, newest_release
from torchmill.core.errors import ImpossibleBuildError
from torchmill.plan import cell_lookup


def test_the_error_names_possible_cells(small_facts: Facts) -> None:
    release = find_release(small_facts, "base", "v1.0.0")
    with pytest.raises(ImpossibleBuildError) as caught:
        cell_lookup.find_cell(small_facts, "wheel-3.13-cpu", "x86_64", release)
    text = str(caught.value)
    assert (
        "wheel-3.13-cpu is untried: base 1.0.0 was released for Python 3.9, 3.10: nobody " in text
    )
    assert "possible instead with v1.0.0: wheel-3.9-cpu, wheel-3.10-cpu" in text
    assert "releases that may be built this way, untried: v2.0.0" in text


def test_a_name_that_is_no_cell_gets_near_matches(small_facts: Facts) -> None:
    with refused("unknown-build") as caught:
        cell_lookup.find_cell(small_facts, "Wheel-3.10-CU181", "x86_64", None)
    assert "wheel-3.10-cu118" in str(caught.value).partition("did you mean")[2]
    assert cell_lookup.usual_spelling("wheel-cp39-cuda11.8") == "wheel-3.9-cu118"
    assert cell_lookup.usual_spelling("wheel-3.9") == "wheel-3.9", "it names no toolkit"


def test_a_package_that_no_fact_describes_is_told_apart_from_a_misspelt_name(
    shipped: Facts,
) -> None:
    for name in ("detectron2-3.10-cu118", "kaolin-3.9-cu112", "fairseq-3.11-cpu"):
        with refused("unknown-build") as caught:
            cell_lookup.find_build(shipped, name, "x86_64", None)
        assert "add-a-package.md" in str(caught.value)
        assert "did you mean" not in str(caught.value)
        assert "flash-attn (flash)" in str(caught.value)
    for name, suggestion in (
        ("torch-3.12-cpu", "wheel-3.12-cpu"),
        ("visoin-3.12-cpu", "vision-3.12-cpu"),
        ("flash-attn-3.12-cu126", "flash-3.12-cu126"),
        ("rocm-3.12-cpu", "ROCm is no variant"),
    ):
        with refused("unknown-build") as caught:
            cell_lookup.find_build(shipped, name, "x86_64", None)
        assert suggestion in str(caught.value)
        assert "add-a-package" not in str(caught.value)


def test_only_names_of_unknown_packages_are_offered_to_be_drafted(shipped: Facts) -> None:
    names = ["spamandeggs", "Spam_Eggs", "flash-atn", "torch-scatter", "wheel-3.12-cpu", "wheel-*"]
    assert cell_lookup.undescribed_packages(shipped, names) == ["spamandeggs", "Spam_Eggs"]


def test_a_name_is_looked_up_in_the_selected_release_only(small_facts: Facts) -> None:
    old = find_release(small_facts, "base", "v1.0.0")
    new = find_release(small_facts, "base", "v2.0.0")
    assert cell_lookup.find_cell(small_facts, "wheel-3.10-cpu", "x86_64", old).release is old
    assert cell_lookup.find_cell(small_facts, "wheel-3.10-cpu", "x86_64", None).release is new
    with refused("no-partner-release"):
        cell_lookup.find_cell(
            small_facts, "vision-3.10-cpu", "x86_64", new
        )  # no addon goes with it


def test_only_a_name_with_the_arch_asks_for_a_container_and_never_on_a_mac(
    small_facts: Facts,
) -> None:
    for name, native, contained in (
        ("wheel-3.10-cpu-x86_64", "x86_64", True),
        ("wheel-3.10-cpu", "x86_64", False),
        ("wheel-3.10-cpu-aarch64", "x86_64", False),
        ("wheel-3.10-cpu-arm64", "arm64", False),
        ("wheel-3.10-cpu-linux_riscv64", "linux_riscv64", False),
    ):
        uncontained = cell_lookup.uncontained_arch(small_facts, [name], native)
        assert uncontained == ("" if contained else native)


def test_a_foreign_machine_is_looked_up_by_its_full_name(small_facts: Facts) -> None:
    cell = cell_lookup.find_cell(small_facts, "wheel-3.10-cpu-x86_64", "aarch64", None)
    assert cell.build.arch == "x86_64"


def test_on_an_unknown_machine_only_a_full_name_is_a_build(small_facts: Facts) -> None:
    with refused("unknown-machine"):
        cell_lookup.find_cell(small_facts, "wheel-3.10-cpu", "linux_ppc64le", None)
    cell = cell_lookup.find_cell(small_facts, "wheel-3.10-cpu-x86_64", "linux_ppc64le", None)
    assert cell.build.arch == "x86_64"


def test_owners_of_other_machines_get_a_place_to_look(shipped: Facts) -> None:
    for native, advice in (
        ("macos_x86_64", "torch 2.2.2, which want a processor with AVX"),
        ("linux_s390x", "download.pytorch.org"),
        ("linux_armv7l", "64-bit system"),
        ("linux_alpha", "not for linux_alpha"),
    ):
        with refused("unknown-machine") as caught:
            cell_lookup.require_machine(shipped, native)
        assert advice in str(caught.value)


def test_the_native_machine_may_be_named_too(small_facts: Facts) -> None:
    short = cell_lookup.find_cell(small_facts, "wheel-3.10-cpu", "x86_64", None)
    assert cell_lookup.find_cell(small_facts, "wheel-3.10-cpu-x86_64", "x86_64", None) == short


def test_explain_gives_every_reason(small_facts: Facts) -> None:
    old = find_release(small_facts, "base", "v1.0.0")
    assert cell_lookup.explain_cell(
        small_facts, "wheel-3.13-cu124", "x86_64", old
    ).splitlines() == [
        (
            "wheel-3.13-cu124 is untried: base 1.0.0 was released for Python 3.9, 3.10: "
            "nobody is known to have tried a newer one"
        ),
        "also: base 1.0.0 takes CUDA >=10.2,<12: nobody is known to have tried a newer one",
        "possible instead with v1.0.0: wheel-3.9-cpu, wheel-3.10-cpu",
        "releases that may be built this way, untried: v2.0.0",
        (
            "to try it all the same, add it to `pythons`, or to `range` below `cuda`, in "
            "build_configs/releases/1.0.0.toml"
        ),
    ]


def test_explain_takes_the_release_that_comes_nearest(small_facts: Facts) -> None:
    lines = cell_lookup.explain_cell(small_facts, "wheel-3.9-cu124", "x86_64", None).splitlines()
    assert lines[0] == (
        "wheel-3.9-cu124 is impossible with every release; with v2.0.0: "
        "base 2.0.0 is written for Python 3.10 or newer"
    )
    cells = "wheel-3.10-cu124, wheel-3.13-cu124, wheel-3.13t-cu124"
    assert lines[1] == f"untried, and possible with v2.0.0: {cells}"


def test_a_dependent_package_is_explained_in_the_tags_that_select_it(shipped: Facts) -> None:
    release = find_release(shipped, "torch", "v1.13.1")
    text = cell_lookup.explain_cell(shipped, "vision-3.12-cpu", "x86_64", release)
    assert "possible instead with v1.13.1: vision-3.7-cpu" in text
    assert re.search(
        r"^releases that were built this way: v2\.15\.0, .*v2\.2\.2$", text, re.MULTILINE
    )


def test_explanations_stay_readable(shipped: Facts) -> None:
    newest = newest_release(shipped)
    for name in ("wheel-3.5-cu90", "wheel-3.9-cu118", "audio-3.5-cu132", "vision-3.12-cu92"):
        text = cell_lookup.explain_cell(shipped, name, "x86_64", newest)
        assert max(len(line) for line in text.splitlines()) <= 240, text


def test_a_package_without_a_release_for_the_selection_is_explained(shipped: Facts) -> None:
    selected = find_release(shipped, "torch", "1.1.0")
    with refused("no-partner-release") as caught:
        cell_lookup.explain_cell(shipped, "audio-3.7-cpu", "x86_64", selected)
    assert "known to go with: v2." in str(caught.value)
    with refused("no-partner-release") as caught:
        cell_lookup.explain_cell(shipped, "flash-3.7-cu102", "x86_64", selected)
    assert "add-a-package.md" in str(caught.value)
    assert "`pip install --only-binary :all: flash-attn torch==1.1.0`" in str(caught.value)


def test_a_package_of_which_no_release_is_described_is_named(small_facts: Facts) -> None:
    facts = replace(small_facts, releases={**small_facts.releases, "addon": ()})
    with refused("no-release"):
        cell_lookup.find_cell(facts, "vision-3.10-cpu", "x86_64", None)
