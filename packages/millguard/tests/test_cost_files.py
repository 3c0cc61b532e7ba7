"""Costs that are handed from machine to machine."""

import json
from pathlib import Path

import pytest
from millguard.cost_files import CostFileError, export_costs, import_costs, read_history
from millguard.expectations import MeasuredNeed, NeedHistory
from millguard.known_costs import load_known_costs
from millguard.policy import CURVE_PARTS

HEAD = '{"format": 2, "kind": "millguard costs"}\n'
CURVE = (0.5,) * (CURVE_PARTS - 1) + (1.0,)
ROW = {"key": "c++|a.cpp|-O2", "peak": 1000, "seconds": 1.5, "curve": CURVE}


@pytest.fixture
def history(tmp_path: Path) -> Path:
    file = tmp_path / "units.sqlite"
    needs = NeedHistory(file)
    needs.learn("c++|a.cpp|-O2", MeasuredNeed(1000, 1.5, CURVE))
    needs.learn(
        "cc|weird\udcff|-O0".encode(errors="backslashreplace").decode(), MeasuredNeed(5, 1.0)
    )
    assert needs.save() is None
    return file


def test_what_is_exported_can_be_imported_elsewhere(history: Path, tmp_path: Path) -> None:
    assert export_costs(history, tmp_path / "costs.jsonl") == 2
    elsewhere = tmp_path / "elsewhere" / "units.sqlite"
    assert import_costs(tmp_path / "costs.jsonl", elsewhere) == 2
    assert read_history(elsewhere) == read_history(history)


def test_the_larger_peak_stays(history: Path, tmp_path: Path) -> None:
    (tmp_path / "costs").write_text(HEAD + json.dumps({**ROW, "peak": 10}) + "\n")
    import_costs(tmp_path / "costs", history)
    assert dict(read_history(history))["c++|a.cpp|-O2"].peak > 900


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}\n",
        '{"format": 1, "kind": "millguard costs"}\n',
        HEAD + "no json\n",
        HEAD + json.dumps({**ROW, "peak": "1"}) + "\n",
        HEAD + json.dumps({**ROW, "peak": 2**70}) + "\n",
        HEAD + json.dumps({**ROW, "seconds": -1}) + "\n",
        HEAD + json.dumps({**ROW, "curve": 1}) + "\n",
        HEAD + json.dumps({**ROW, "curve": ["1"]}) + "\n",
        HEAD + json.dumps({**ROW, "curve": [2]}) + "\n",
        HEAD + json.dumps({**ROW, "curve": [0.5, 1]}) + "\n",
        HEAD + json.dumps({**ROW, "key": ""}) + "\n",
        HEAD + json.dumps({**ROW, "key": "\ud800"}) + "\n",
        HEAD + '{"key": "a"}\n',
        HEAD + "\x80",
    ],
)
def test_a_wrong_file_adds_nothing(history: Path, tmp_path: Path, text: str) -> None:
    before = read_history(history)
    (tmp_path / "costs").write_text(text, encoding="latin-1")
    with pytest.raises(CostFileError):
        import_costs(tmp_path / "costs", history)
    assert read_history(history) == before


@pytest.mark.parametrize("content", [b"#include <regex>\n", b"\xff\n", b""])
def test_another_file_is_refused_in_words_for_a_user(
    history: Path, tmp_path: Path, content: bytes
) -> None:
    (tmp_path / "costs").write_bytes(content)
    with pytest.raises(CostFileError, match="line 1: it is not JSON, as `millguard costs export`"):
        import_costs(tmp_path / "costs", history)


def test_without_a_history_there_is_nothing_to_export(tmp_path: Path) -> None:
    with pytest.raises(CostFileError, match="nothing was learned yet"):
        export_costs(tmp_path / "none", tmp_path / "costs")


def test_the_costs_that_ship_are_well_formed() -> None:
    costs = load_known_costs()
    assert len({cost.pattern for cost in costs}) == len(costs)
    assert all(2**28 < cost.peak < 2**36 for cost in costs)
