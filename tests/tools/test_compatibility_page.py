"""The compatibility pages, which are generated from the facts."""

from tools.compatibility_page import compatibility_pages
from torchmill.config.facts import Facts


def rows(text: str) -> dict[str, list[str]]:
    """Return the rows of a page's table by their first cell."""
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {first: rest for first, *rest in cells}


def test_releases_of_the_small_facts(small_facts: Facts) -> None:
    table = rows(compatibility_pages(small_facts)["releases.md"])
    assert table["base"] == ["date", "Python", "machines", "glibc", "addon"]
    assert table["1.0.0"] == ["", "3.9 3.10", "x86_64 aarch64 arm64", "", "0.1.0"]
    assert table["2.0.0"] == ["", "3.10 3.13 3.13t", "x86_64 aarch64", "", ""]


def test_build_requirements_come_from_the_rules(small_facts: Facts) -> None:
    table = rows(compatibility_pages(small_facts)["requirements.md"])
    assert table["1.0.0"][5:] == ["<2", ""]
    assert table["2.0.0"][5:] == ["", "pep517"]


def test_chosen_releases(shipped: Facts) -> None:
    releases = rows(compatibility_pages(shipped)["releases.md"])
    columns = releases["torch"]

    def cells(version: str) -> dict[str, str]:
        return {name: text for name, text in zip(columns, releases[version], strict=True) if text}

    everywhere = "x86_64 aarch64 arm64 amd64"
    assert cells("2.15.0") == {
        "date": "2026-10-28",
        "Python": "3.11 3.12 3.13 3.14 3.14t 3.15 3.15t",
        "machines": everywhere,
        "glibc": "2.28",
        "torchvision": "0.29.2",
        "torchaudio": "2.11.1",
        "triton": "3.9.0",
    }
    assert cells("1.13.1") == {
        "date": "2022-12-15",
        "Python": "3.7 3.8 3.9 3.10 3.11",
        "machines": everywhere,
        "glibc": "2.17",
        "torchvision": "0.14.1 (not 3.11)",
        "torchaudio": "0.13.1 (not 3.11)",
        "torchtext": "0.14.1",
    }
    assert cells("1.0.0") == {
        "date": "2018-12-07",
        "Python": "3.5 3.6 3.7",
        "machines": "x86_64 aarch64 amd64",
        "glibc": "2.17",
        "torchvision": "0.2.1",
    }
    assert list(releases)[2] == "2.15.0", "the newest first"


def test_releases_of_an_extension_have_the_torch_that_they_go_with(shipped: Facts) -> None:
    lines = compatibility_pages(shipped)["releases.md"].splitlines()
    scatter = [line.split(" | ")[1:] for line in lines if line.startswith("| torch-scatter |")]
    assert scatter[:2] == [
        ["2.1.2", ">=2.0,<2.16", ">=3.8", " |"],
        ["2.1.1", ">=1.13,<2.0", ">=3.7", " |"],
    ]
    assert len(scatter) == 5


def test_official_toolkits_of_chosen_releases(shipped: Facts) -> None:
    text = compatibility_pages(shipped)["cuda-1.md"]
    of = {part.split(" |", 1)[0]: part for part in text.split("\n| ") if part[0].isdigit()}
    assert "takes >=10.2,<=12.3; untried 10.2 11.0" in of["1.13.1"]
    below = text.partition("| 1.13.1 |")[2].partition("| 1.13.0 |")[0].splitlines()[1:]
    assert below == [
        "|  | 11.6 | 8.3.2.44 |  | 2.6.1 | 3.7;5.0;6.0;7.0;7.5;8.0;8.6 |  |",
        "|  | 11.7* | 8.5.0.96 | 2.14.3 | 2.6.1 | 3.7;5.0;6.0;7.0;7.5;8.0;8.6 |  |",
    ]
