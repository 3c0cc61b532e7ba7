"""Notes on what the facts leave open about CUDA toolkits, and drivers that contradict each other."""

import re
import tomllib
from dataclasses import replace

import pytest

from tests.support.changed_facts import change_facts
from tests.support.commands import ROOT
from tests.support.refusals import refused
from tools.facts import summarize_facts
from tools.toolkit_gaps import describe_gaps, refuse_different_drivers
from torchmill.config.facts import Facts
from torchmill.config.toolkit import Toolkit
from torchmill.config.versions import version_key

OLDEST = "9.0"  # the oldest toolkit that is described
NEW_VERSION = "99.0"


def with_new_toolkit(shipped: Facts, **changes: object) -> Facts:
    """Return facts with a toolkit of which nothing but `toolkits.toml` knows."""
    newest = shipped.toolkits[-1]
    toolkit = replace(newest, version=NEW_VERSION, variant="cu990", **changes)  # type: ignore[arg-type]
    return replace(shipped, toolkits=(*shipped.toolkits, toolkit))


def test_a_new_toolkit_has_every_gap_until_it_is_described(shipped: Facts) -> None:
    notes = describe_gaps(with_new_toolkit(shipped))
    assert f"note: no provider, no parts, no installer, no image: CUDA {NEW_VERSION}" in notes


def test_toolkits_with_the_same_gaps_share_a_note(shipped: Facts) -> None:
    notes = describe_gaps(shipped)
    (line,) = [note for note in notes if note.startswith("note: no provider, no parts, no image:")]
    assert "9.0, 9.1" in line
    named: list[str] = []
    for note in notes[:-1]:
        named += note.rpartition("CUDA ")[2].split(", ")
    assert len(named) == len(set(named)), "a toolkit is named in one note"


def test_capabilities_without_gpus_are_named(shipped: Facts) -> None:
    note = describe_gaps(with_new_toolkit(shipped, capabilities=("8.6", "99.1", "99.1a")))[-1]
    prefix, _, names = note.rpartition(" ")
    assert (prefix.startswith("note: no GPUs: compute capability "), names) == (True, "99.1")
    assert " 8.6" not in note


def test_a_kind_of_facts_that_is_absent_is_no_gap(shipped: Facts) -> None:
    facts = replace(shipped, toolkit_sources=())
    facts = change_facts(facts, images={"archives": (), "bases": ()}, gpus={"capabilities": ()})
    assert describe_gaps(facts) == []


def test_gaps_are_notes_below_the_counts(shipped: Facts) -> None:
    lines = summarize_facts(shipped).splitlines()
    notes = describe_gaps(shipped)
    assert lines[-len(notes) :] == notes
    assert lines[-len(notes) - 1].endswith("causes of failures")


@pytest.mark.parametrize("key", ["driver", "driver_windows"])
def test_drivers_of_a_major_version_may_not_differ(shipped: Facts, key: str) -> None:
    refuse_different_drivers(shipped)
    toolkits = list(shipped.toolkits)
    (index,) = [index for index, toolkit in enumerate(toolkits) if toolkit.version == "12.4"]
    if key == "driver":
        toolkits[index] = replace(toolkits[index], driver="640.10")
    else:
        toolkits[index] = replace(toolkits[index], driver_windows="640.10")
    with refused("facts-invalid") as raised:
        refuse_different_drivers(replace(shipped, toolkits=tuple(toolkits)))
    assert f"12.4: '{key}' is 640.10, and that of 12.0 is" in str(raised.value)


def known_ranges() -> dict[str, tuple[str, str]]:
    """Return the first and last toolkit of each GPU in `gpus_of_toolkits`; "" for an open end."""
    path = ROOT / "build_configs" / "known_names.toml"
    text = tomllib.loads(path.read_text("utf-8"))["names"]["gpus_of_toolkits"]
    ranges: dict[str, tuple[str, str]] = {}
    for line in text.strip().splitlines():
        answer, _, gpus = line.rpartition(": ")
        head = re.match(r"CUDA ([\d.]+)(?: and (newer|older|[\d.]+))?", answer)
        assert head is not None, line
        version, end = head[1], head[2] or head[1]
        first, last = {"newer": (version, ""), "older": ("", version)}.get(end, (version, end))
        # "60 and newer since CUDA 8, 70 since 9.0": the GPUs of a line that came later.
        later = re.findall(r"(\d+) since ([\d.]+)", answer)
        ranges |= dict.fromkeys(gpus.split(), (first, last))
        ranges |= {gpu: (start, last) for gpu, start in later}
    return ranges


def toolkit_range(toolkits: tuple[Toolkit, ...], target: str) -> tuple[str, str]:
    """Return the first and last toolkit with code for a target; "" if it is the end of all."""
    versions = [toolkit.version for toolkit in toolkits if target in toolkit.capabilities]
    first = "" if versions[0] == toolkits[0].version else versions[0]
    last = "" if versions[-1] == toolkits[-1].version else versions[-1]
    return first, last


def test_known_names_agree_with_the_capabilities_of_toolkits(shipped: Facts) -> None:
    ranges = known_ranges()
    targets: dict[str, None] = {}  # an ordered set
    for toolkit in shipped.toolkits:
        targets |= dict.fromkeys(toolkit.capabilities)
    expected = {}
    for target in targets:
        expected[target.replace(".", "")] = toolkit_range(shipped.toolkits, target)
    described = {}
    for gpu, (first, last) in ranges.items():
        if last and version_key(last) < version_key(OLDEST):
            continue  # Fermi, which no described toolkit makes code for
        # A toolkit older than all that are described is an open end.
        is_open = version_key(first) <= version_key(OLDEST)
        described[gpu] = ("" if is_open else first, last)
    assert described == expected, "gpus_of_toolkits in known_names.toml differs from toolkits.toml"
