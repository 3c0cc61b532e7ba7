"""Axes to builds, and what is said of those that cannot be."""

from pathlib import Path

import pytest

from tests.support.refusals import refused
from torchmill.commands import matrix
from torchmill.config import facts_reader
from torchmill.config.build import Build
from torchmill.config.facts import Facts
from torchmill.config.release_lookup import find_release, partner_releases
from torchmill.plan.cell import Cell
from torchmill.plan.matrix import UNTRIED, buildable_cells, make_cell, possible_cells, release_grid


def identifiers(cells: tuple[Cell, ...], native: str = "x86_64") -> list[str]:
    return [cell.build.identifier(native) for cell in cells]


def test_the_native_machine_is_not_named_others_are() -> None:
    build = Build("torch", "wheel", "3.10", "cpu", "aarch64")
    assert build.identifier("aarch64") == "wheel-3.10-cpu"
    assert build.identifier("x86_64") == "wheel-3.10-cpu-aarch64"


def test_a_selected_release_gives_exactly_its_cells(known: Facts) -> None:
    release = find_release(known, "base", "v1.0.0")
    assert identifiers(buildable_cells(known, release, "x86_64")) == [
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


def test_toolkits_and_conflicts_narrow_another_machine(known: Facts) -> None:
    release = find_release(known, "base", "1.0.0")
    cells = [
        cell for cell in buildable_cells(known, release, "aarch64") if cell.build.session == "wheel"
    ]
    assert identifiers(tuple(cells), "aarch64") == [
        "wheel-3.9-cpu",
        "wheel-3.9-cu118",
        "wheel-3.10-cpu",
    ]


def test_without_a_selection_a_cell_is_of_the_newest_release_that_supports_it(known: Facts) -> None:
    found = {
        cell.build.identifier("x86_64"): cell for cell in buildable_cells(known, None, "x86_64")
    }
    assert found["wheel-3.10-cpu"].release.version == "2.0.0"
    assert found["wheel-3.9-cpu"].release.version == "1.0.0"
    assert found["wheel-3.13t-cu124"].release.version == "2.0.0"
    assert "wheel-3.9-cu124" not in found


TOO_NEW = "base 1.0.0 was released for Python 3.9, 3.10: nobody is known to have tried a newer one"


@pytest.mark.parametrize(
    ("python", "variant", "arch", "reason"),
    [
        (
            "3.13",
            "cpu",
            "x86_64",
            TOO_NEW,
        ),
        ("3.10", "cu124", "x86_64", f"base 1.0.0 takes CUDA >=10.2,<12: {UNTRIED}"),
        ("3.10", "cu102", "aarch64", "CUDA 10.2 exists for x86_64 only"),
        ("3.10", "cu118", "aarch64", "nobody has made Python 3.10 and CUDA 11.8 meet on aarch64"),
    ],
)
def test_an_impossible_cell_has_its_reason(
    known: Facts, python: str, variant: str, arch: str, reason: str
) -> None:
    release = find_release(known, "base", "v1.0.0")
    cells = {
        (one.build.python, one.build.variant, one.build.arch): one
        for one in release_grid(known, release)
    }
    assert cells[python, variant, arch].reason == reason


def test_a_cell_has_all_its_reasons_the_axes_first(known: Facts) -> None:
    build = Build("base", "wheel", "3.13", "cu124", "arm64", "12.4")
    assert make_cell(known, known.releases["base"][0], build).reasons == (
        TOO_NEW,
        f"base 1.0.0 takes CUDA >=10.2,<12: {UNTRIED}",
        "CUDA 12.4 exists for x86_64, aarch64 only",
    )


def test_a_dependent_package_says_its_own_axes_or_else_its_base_s(configs: Path) -> None:
    narrowed = configs / "releases" / "1.0.0.toml"
    text = narrowed.read_text(encoding="utf-8")
    narrowed.write_text(f'{text}pythons = ["3.9", "3.13"]\n', encoding="utf-8")
    known = facts_reader.read_facts(configs)
    addon = known.releases["addon"][0]
    said = {
        python: make_cell(known, addon, Build("addon", "vision", python, "cpu", "x86_64")).reasons
        for python in ("3.9", "3.10", "3.13")
    }
    assert said == {
        "3.9": (),
        "3.10": ("addon 0.1.0 was released for Python 3.9, 3.13, and not for 3.10",),
        "3.13": (TOO_NEW,),
    }
    possible = {cell.build.python for cell in possible_cells(known, addon, "x86_64")}
    assert possible == {"3.9"}


def test_a_dependent_package_cannot_be_where_its_base_cannot(known: Facts) -> None:
    release = known.releases["addon"][0]
    reasons = {
        cell.build.identifier("x86_64"): cell.reason for cell in release_grid(known, release)
    }
    assert (
        reasons["vision-3.10-cu118-aarch64"]
        == "nobody has made Python 3.10 and CUDA 11.8 meet on aarch64"
    )


def test_an_unknown_tag_gets_near_matches(known: Facts) -> None:
    with refused("unknown-release") as caught:
        find_release(known, "base", "v1.0.1")
    assert "there is v1.0.0" in str(caught.value)
    with refused("unknown-release") as caught:
        find_release(known, "base", "nightly")
    assert "there is v1.0.0 to v" in str(caught.value)


def test_listing_names_every_cell_of_the_grid(known: Facts) -> None:
    cells = list(release_grid(known, known.releases["base"][0]))
    entries = matrix.cells_as_data(known, cells, "x86_64")
    assert len(entries) == 3 * 4 * 4, "arches x pythons x (cpu and three toolkits)"
    cell = {"identifier", "package", "python", "variant", "arch", "possible", "reason"}
    assert set(entries[0]) == {*cell, "standing", "because", "source"}
    assert all((entry["reason"] is None) == entry["possible"] for entry in entries)


def test_listing_as_text_shows_cells_and_reasons(known: Facts) -> None:
    cells = [
        one for one in release_grid(known, known.releases["base"][0]) if one.build.arch == "x86_64"
    ]
    text = matrix.cells_as_text(known, cells)
    assert text.startswith("base 1.0.0 on x86_64\n  Python  3.9   3.10\n  cpu     tried tried\n")
    assert "untried cu124: base 1.0.0 takes CUDA >=10.2,<12" in text
    on_arm = [
        one for one in release_grid(known, known.releases["base"][0]) if one.build.arch == "aarch64"
    ]
    assert "no cu118 with Python 3.10: nobody has made" in matrix.cells_as_text(known, on_arm)


def test_a_grid_says_what_is_official_and_fits_a_terminal(shipped: Facts) -> None:
    for release in shipped.releases["torch"]:
        cells = [one for one in release_grid(shipped, release) if one.build.arch == "x86_64"]
        text = matrix.cells_as_text(shipped, cells)
        assert max(map(len, text.splitlines())) <= 80, text
    newer = [
        one
        for one in release_grid(shipped, find_release(shipped, "torch", "2.4.1"))
        if one.build.arch == "x86_64"
    ]
    rows = {
        line.split()[0]: line.split()[1:]
        for line in matrix.cells_as_text(shipped, newer).splitlines()
        if line
    }
    assert (rows["cu121"], rows["cu122"]) == (["wheel"] * 5, ["?"] * 5)


def test_no_two_shipped_cells_share_a_name(shipped: Facts) -> None:
    for release in shipped.releases["torch"]:
        cells = buildable_cells(shipped, release, "x86_64")
        names = identifiers(cells)
        assert len(names) == len(set(names)) > 0


def test_every_package_that_is_named_must_have_its_release(shipped: Facts) -> None:
    old = find_release(shipped, "torch", "1.1.0")
    with refused("no-partner-release"):
        partner_releases(shipped, old, ["wheel", "vision", "audio"])
    assert [one.package for one in partner_releases(shipped, old, ["vision"])] == ["torchvision"]
    assert partner_releases(shipped, old, []) == (old,)
