"""The commands of a setup.py that are parsed, and the facts that become of the results."""

import tomllib
from dataclasses import replace
from pathlib import Path

from tools.syntax.parse_cells import (
    ParseResult,
    format_facts,
    merge_results,
    parse_words,
    shared_headers,
)
from torchmill.config.parsed import ParsedSource
from torchmill.config.toml_reader import read_toml

RESULT = ParseResult(
    "torchsort", "0.1.9", "2.15.0", "cpu", "3.12", "g++ 12.2.0", "2026-12-01", 1, 0, ""
)


def test_a_command_only_parses_and_keeps_what_decides() -> None:
    argv = ["g++", "-O3", "-g", "-Wall", "-DA", "-Icsrc", "-c", "a.cpp", "-o", "a.o", "-std=c++20"]
    assert parse_words(argv) == [
        "g++", "-DA", "-Icsrc", "a.cpp", "-std=c++20", "-fsyntax-only", "-w"
    ]  # fmt: skip


def test_a_header_is_precompiled_if_several_files_include_it(tmp_path: Path) -> None:
    (tmp_path / "csrc").mkdir()
    texts = {
        "a.cpp": "#include <Python.h>\n#include <torch/script.h>\n",
        "csrc/b.cpp": '#include "b.h"\n',
        "csrc/b.h": "#pragma once\n#include <torch/script.h>\n",
        "c.cpp": "#include <torch/extension.h>\n",
        "d.cpp": "int main() {}\n",
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    commands = [["g++", "-Icsrc", "-c", name] for name in texts if name.endswith(".cpp")]
    assert shared_headers(tmp_path, commands) == {
        "a.cpp": "torch/script.h",
        "csrc/b.cpp": "torch/script.h",
    }


def test_results_become_facts_and_replace_older_ones(tmp_path: Path) -> None:
    results = [RESULT, replace(RESULT, torch="2.9.1", error='a.cpp:3: no "x"')]
    facts = merge_results((), results)
    expected = ParsedSource(
        "torchsort", "0.1.9", "cpu", "3.12", "g++ 12.2.0", "2026-12-01", 1, 0,
        ("2.15.0",), {"2.9.1": 'a.cpp:3: no "x"'},
    )  # fmt: skip
    assert facts == [expected]
    path = tmp_path / "parsed.toml"
    path.write_text(format_facts(facts), encoding="utf-8")
    assert tomllib.loads(path.read_text(encoding="utf-8"))
    problems: list[str] = []
    assert read_toml(path, problems).read_each("source", ParsedSource) == (expected,)
    assert not problems
    later = replace(RESULT, torch="2.9.1", date="2026-12-02")
    assert merge_results(facts, [later]) == [
        replace(expected, refused={}),
        replace(expected, date="2026-12-02", accepted=("2.9.1",), refused={}),
    ]
