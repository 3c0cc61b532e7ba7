"""The draft of a new release can be read, and the check agrees with it."""

import tomllib
from dataclasses import replace
from pathlib import Path

from tests.tools.test_upstream_compare import ADDONS, ARM, CANDIDATE, LINUX, PINS, TAG, make_wheel
from tools import upstream_draft
from tools.remote_wheel import RemoteWheel
from tools.upstream_check import release_differences
from torchmill.config import facts_reader
from torchmill.config.facts import Facts

NEWER = [
    replace(
        make_wheel(python, platform, cuda="11.8" if platform == LINUX else None),
        version="3.0.0",
        requires_python=">=3.10",
    )
    for platform in (LINUX, ARM, "macosx_11_0_arm64", "macosx_10_9_x86_64")
    for python in ("3.10", "3.13", "3.13t")
]
PAIRED = [replace(wheel, version="0.3.0", requires=("base==3.0.0",)) for wheel in ADDONS]
OPEN = [replace(wheel, version="0.4.0", requires=("base>=1",)) for wheel in ADDONS]


def draft(small_facts: Facts, addon: list[RemoteWheel]) -> dict[str, dict[str, object]]:
    document: dict[str, dict[str, object]] = tomllib.loads(
        upstream_draft.draft_release(small_facts, {"addon": addon, "base": NEWER}, "3.0.0")
    )
    return document


def test_new_releases_are_newer_than_known_ones(small_facts: Facts) -> None:
    small_facts = replace(
        small_facts, releases={**small_facts.releases, "base": small_facts.releases["base"]}
    )
    old = replace(NEWER[0], version="0.4")
    withdrawn = replace(NEWER[0], version="3.0.1", yanked=True)
    assert upstream_draft.new_releases(
        small_facts, {"base": [*NEWER, old, withdrawn], "addon": []}
    ) == ["3.0.0"]


def test_a_draft_has_all_facts_of_the_wheels(small_facts: Facts) -> None:
    base = draft(small_facts, PAIRED)["base"]
    assert base["version"] == "3.0.0"
    assert (base["date"], base["built_from"]) == ("2022-12-15", TAG)
    assert base["pythons"] == ["3.10", "3.13", "3.13t"]
    assert base["arches"] == ["x86_64", "aarch64", "arm64"], "macOS on x86_64 is not supported"
    assert base["sizes"] == {"libtorch_cpu.so": 5_000_000}
    assert base["partners"] == {"triton": "2.0.0"}
    assert base["cuda"] == {
        "range": "==11.8",
        "pypi": "11.8",
        "official": {
            "11.8": {
                "cudnn": "8.5.0.96",
                "nccl": "2.14.3",
                "requires": ["nvidia-cudnn-cu11==8.5.0.96", "nvidia-nccl-cu11==2.14.3"],
            }
        },
    }


def test_a_dependent_that_pins_the_release_is_preferred(small_facts: Facts) -> None:
    assert draft(small_facts, [*ADDONS, *PAIRED, *OPEN])["addon"]["version"] == "0.3.0"
    assert draft(small_facts, [*ADDONS, *OPEN])["addon"]["version"] == "0.4.0"
    assert "addon" not in draft(small_facts, []), "it is not on the index"
    addon = draft(small_facts, PAIRED)["addon"]
    assert (addon["pythons"], addon["source"]) == (["3.10"], "PyPI METADATA: base==3.0.0")


def test_facts_of_another_file_are_not_repeated(small_facts: Facts) -> None:
    again = [replace(wheel, version="0.1.0", requires=("base",)) for wheel in ADDONS]
    assert draft(small_facts, again)["addon"] == {
        "version": "0.1.0",
        "pythons": ["3.10"],
        "source": "PyPI METADATA, which asks for no version of base",
    }


def test_commits_of_single_wheels_become_a_table(small_facts: Facts) -> None:
    mixed = [
        replace(wheel, commit=CANDIDATE) if wheel.platform == ARM else wheel for wheel in NEWER
    ]
    text = upstream_draft.draft_release(small_facts, {"base": mixed, "addon": []}, "3.0.0")
    built = tomllib.loads(text)["base"]["built_from"]
    assert built[CANDIDATE] == [ARM]
    assert built[TAG] == [LINUX, "macosx_10_9_x86_64", "macosx_11_0_arm64"]


def test_the_check_agrees_with_a_draft(small_facts: Facts, configs: Path) -> None:
    observed = {"addon": PAIRED, "base": NEWER}
    text = upstream_draft.draft_release(small_facts, observed, "3.0.0")
    (configs / "releases" / "3.0.0.toml").write_text(text, encoding="utf-8")
    differences = release_differences(facts_reader.read_facts(configs), observed, ("3.0.0",))
    assert [
        difference for difference in differences if not difference.name.startswith("code ")
    ] == [], "their code is read by another command"
    odd = {"base": [replace(wheel, requires=PINS[:1]) for wheel in NEWER], "addon": PAIRED}
    assert release_differences(facts_reader.read_facts(configs), odd, ("3.0.0",)) != ()
