"""Axes to builds, and the reasons against those that are impossible."""

from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.support.refusals import refused
from torchmill.commands import matrix
from torchmill.config import facts_reader
from torchmill.config.build import Build
from torchmill.config.facts import Facts
from torchmill.config.release import Release
from torchmill.config.release_lookup import find_release, partner_releases
from torchmill.plan.cell import Cell
from torchmill.plan.matrix import UNTRIED, buildable_cells, make_cell, possible_cells, release_grid

TOO_NEW = f"base 1.0.0 was released for Python 3.9, 3.10: {UNTRIED}"
NEVER_TOGETHER = "nobody has made Python 3.10 and CUDA 11.8 meet on aarch64"


def identifiers(cells: Iterable[Cell], native: str = "x86_64") -> list[str]:
    return [cell.build.identifier(native) for cell in cells]


def cells_of_machine(facts: Facts, release: Release, arch: str) -> list[Cell]:
    """Return the cells of a release on one machine, impossible ones too."""
    return [cell for cell in release_grid(facts, release) if cell.build.arch == arch]


def test_only_the_arch_of_another_machine_is_named() -> None:
    build = Build("torch", "wheel", "3.10", "cpu", "aarch64")
    assert build.identifier("aarch64") == "wheel-3.10-cpu"
    assert build.identifier("x86_64") == "wheel-3.10-cpu-aarch64"


def test_a_selected_release_gives_exactly_its_cells(small_facts: Facts) -> None:
    release = find_release(small_facts, "base", "v1.0.0")
    assert identifiers(buildable_cells(small_facts, release, "x86_64")) == [
        "wheel-3.9-cpu",
        "wheel-3.9-cu102",
        "wheel-3.9-cu118",
        "wheel-3.10-cpu",
        "wheel-3.10-cu102",
        "wheel-3.10-cu118",
        "vision-3.9-cpu",
        "vision-3.9-cu102",
        "vision-3.9-cu118",
        "vision-3.10-cpu",
        "vision-3.10-cu102",
        "vision-3.10-cu118",
    ]


def test_toolkits_and_conflicts_narrow_another_machine(small_facts: Facts) -> None:
    release = find_release(small_facts, "base", "1.0.0")
    names = identifiers(buildable_cells(small_facts, release, "aarch64"), "aarch64")
    assert [name for name in names if name.startswith("wheel")] == [
        "wheel-3.9-cpu",
        "wheel-3.9-cu118",
        "wheel-3.10-cpu",
    ]


def test_without_a_selection_a_cell_is_of_the_newest_release_that_supports_it(
    small_facts: Facts,
) -> None:
    versions: dict[str, str] = {}
    for cell in buildable_cells(small_facts, None, "x86_64"):
        versions[cell.build.identifier("x86_64")] = cell.release.version
    assert versions["wheel-3.10-cpu"] == "2.0.0"
    assert versions["wheel-3.9-cpu"] == "1.0.0"
    assert versions["wheel-3.13t-cu124"] == "2.0.0"
    assert "wheel-3.9-cu124" not in versions


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("wheel-3.13-cpu", TOO_NEW),
        ("wheel-3.10-cu124", f"base 1.0.0 takes CUDA >=10.2,<12: {UNTRIED}"),
        ("wheel-3.10-cu102-aarch64", "CUDA 10.2 exists for x86_64 only"),
        ("wheel-3.10-cu118-aarch64", NEVER_TOGETHER),
    ],
)
def test_an_impossible_cell_has_its_reason(small_facts: Facts, name: str, reason: str) -> None:
    release = find_release(small_facts, "base", "v1.0.0")
    cells = {cell.build.identifier("x86_64"): cell for cell in release_grid(small_facts, release)}
    assert cells[name].reason == reason


def test_a_cell_has_all_its_reasons_the_axes_first(small_facts: Facts) -> None:
    build = Build("base", "wheel", "3.13", "cu124", "arm64", "12.4")
    assert make_cell(small_facts, small_facts.releases["base"][0], build).reasons == (
        TOO_NEW,
        f"base 1.0.0 takes CUDA >=10.2,<12: {UNTRIED}",
        "CUDA 12.4 exists for x86_64, aarch64 only",
    )


def test_a_dependent_package_has_reasons_of_its_own_axes_or_else_of_its_base(configs: Path) -> None:
    file = configs / "releases" / "1.0.0.toml"
    text = file.read_text(encoding="utf-8")
    file.write_text(f'{text}pythons = ["3.9", "3.13"]\n', encoding="utf-8")
    facts = facts_reader.read_facts(configs)
    addon = facts.releases["addon"][0]

    def reasons(python: str) -> tuple[str, ...]:
        build = Build("addon", "vision", python, "cpu", "x86_64")
        return make_cell(facts, addon, build).reasons

    assert reasons("3.9") == ()
    assert reasons("3.10") == ("addon 0.1.0 was released for Python 3.9, 3.13, and not for 3.10",)
    assert reasons("3.13") == (TOO_NEW,)
    assert {cell.build.python for cell in possible_cells(facts, addon, "x86_64")} == {"3.9"}


def test_a_dependent_package_is_impossible_if_its_base_is(small_facts: Facts) -> None:
    release = small_facts.releases["addon"][0]
    cells = {cell.build.identifier("x86_64"): cell for cell in release_grid(small_facts, release)}
    assert cells["vision-3.10-cu118-aarch64"].reason == NEVER_TOGETHER


def test_an_unknown_tag_gets_near_matches(small_facts: Facts) -> None:
    with refused("unknown-release") as caught:
        find_release(small_facts, "base", "v1.0.1")
    assert "there is v1.0.0" in str(caught.value)
    with refused("unknown-release") as caught:
        find_release(small_facts, "base", "nightly")
    assert "there is v1.0.0 to v" in str(caught.value)


def test_listing_names_every_cell_of_the_grid(small_facts: Facts) -> None:
    cells = list(release_grid(small_facts, small_facts.releases["base"][0]))
    entries = matrix.cells_as_data(small_facts, cells, "x86_64")
    assert len(entries) == 3 * 4 * 4, "arches x pythons x (cpu and three toolkits)"
    keys = {"identifier", "package", "python", "variant", "arch", "possible", "reason"}
    assert set(entries[0]) == {*keys, "standing", "because", "source"}
    for entry in entries:
        assert (entry["reason"] is None) == entry["possible"]


def test_listing_as_text_shows_cells_and_reasons(small_facts: Facts) -> None:
    release = small_facts.releases["base"][0]
    text = matrix.cells_as_text(small_facts, cells_of_machine(small_facts, release, "x86_64"))
    assert text.startswith("base 1.0.0 on x86_64\n  Python  3.9   3.10\n  cpu     tried tried\n")
    assert "untried cu124: base 1.0.0 takes CUDA >=10.2,<12" in text
    text_of_arm = matrix.cells_as_text(
        small_facts, cells_of_machine(small_facts, release, "aarch64")
    )
    assert "no cu118 with Python 3.10: nobody has made" in text_of_arm


def test_a_grid_shows_official_builds_and_fits_a_terminal(shipped: Facts) -> None:
    for release in shipped.releases["torch"]:
        text = matrix.cells_as_text(shipped, cells_of_machine(shipped, release, "x86_64"))
        assert max(map(len, text.splitlines())) <= 80, text

    release = find_release(shipped, "torch", "2.4.1")
    text = matrix.cells_as_text(shipped, cells_of_machine(shipped, release, "x86_64"))
    rows: dict[str, list[str]] = {}
    for line in text.splitlines():
        if line:
            variant, *standings = line.split()
            rows[variant] = standings
    assert rows["cu121"] == ["wheel"] * 5
    assert rows["cu122"] == ["?"] * 5


def test_no_two_shipped_cells_share_a_name(shipped: Facts) -> None:
    for release in shipped.releases["torch"]:
        names = identifiers(buildable_cells(shipped, release, "x86_64"))
        assert len(names) == len(set(names)) > 0


def test_every_package_that_is_named_must_have_its_release(shipped: Facts) -> None:
    release = find_release(shipped, "torch", "1.1.0")
    with refused("no-partner-release"):
        partner_releases(shipped, release, ["wheel", "vision", "audio"])
    (partner,) = partner_releases(shipped, release, ["vision"])
    assert partner.package == "torchvision"
    assert partner_releases(shipped, release, []) == (release,)
