"""The machines of public threads that benchmarks/judge_machines.py judges."""

import re
import shlex
from pathlib import Path

import tomlkit
from judge_machines import (
    ROOT,
    VERDICTS,
    VERDICTS_FILE,
    Answer,
    Machine,
    read_machines,
    shortcomings,
    verdict_table,
)

from torchmill.host.description import load_host

MACHINES = read_machines()


def test_machines_have_distinct_names() -> None:
    assert len({machine.name for machine in MACHINES}) == len(MACHINES) >= 70
    assert len({machine.at for machine in MACHINES}) == len(MACHINES)
    assert {machine.wanted for machine in MACHINES} == {"build", "official", "other", "scope"}


def test_hosts_are_what_doctor_saves(tmp_path: Path) -> None:
    for machine in MACHINES:
        file = tmp_path / f"{machine.name}.toml"
        file.write_text(tomlkit.dumps(machine.host), encoding="utf-8")
        assert load_host(file).arch == machine.host["arch"]


def test_questions_and_patterns_are_valid() -> None:
    for machine in MACHINES:
        assert all(
            shlex.split(question)[0] in {"arch", "doctor", "explain", "plan"}
            for question in machine.ask
        )
        assert all(re.compile(pattern) for pattern in (*machine.says, *machine.never))


def _machine(**fields: object) -> Machine:
    return Machine(
        **{
            "name": "m",
            "at": "https://github.com/o/n/issues/1",
            "date": "2026",
            "os": "debian 12",
            "wants": "w",
        }
        | {"truth": "t", "sure": "s", "wanted": "build", "ask": ["doctor"], "host": {}}
        | fields  # type: ignore[arg-type]
    )


def test_shortcomings_are_missing_and_forbidden_texts() -> None:
    machine = _machine(says=[r"g\+\+-8", "CUDA 10"], never=["gcc-toolset"])
    good = Answer("doctor", 0, "install g++-8\n  for cuda\n10.2")
    assert shortcomings(machine, [good]) == []
    assert shortcomings(machine, [Answer("doctor", 1, "gcc-toolset-8 for CUDA 10.2")]) == [
        r"does not say 'g\\+\\+-8'",
        "says 'gcc-toolset'",
    ]
    assert shortcomings(
        machine, [good, Answer("plan", 1, "Traceback (most recent call last):")]
    ) == ["`plan` broke"]


def test_table_counts_the_verdicts_of_all_rounds() -> None:
    table = verdict_table(
        [_machine()],
        {
            "m": {
                "question": "q",
                "first": "silent",
                "second": "wrong",
                "last": "foreseen and cured",
            }
        },
    )
    assert "| silent | 1 | 0 |" in table
    assert (
        "| [o/n#1](https://github.com/o/n/issues/1) | q | silent | wrong | foreseen and cured |"
        in table
    )


def test_every_machine_has_a_verdict_of_all_rounds() -> None:
    verdicts = tomlkit.parse(VERDICTS_FILE.read_text(encoding="utf-8")).unwrap()
    assert verdicts.keys() == {machine.name for machine in MACHINES}
    for verdict in verdicts.values():
        assert {verdict["first"], verdict["second"], verdict["last"]} <= set(VERDICTS)
        good = {"foreseen and cured", "out of scope, honest"}
        assert verdict["last"] in good or verdict.get("still")


def test_page_of_the_measurement_has_the_table_of_the_verdicts() -> None:
    verdicts = tomlkit.parse(VERDICTS_FILE.read_text(encoding="utf-8")).unwrap()
    page = (ROOT / "docs/measurements/machines.md").read_text(encoding="utf-8")
    missing = set(verdict_table(MACHINES, verdicts).splitlines()) - set(page.splitlines())
    assert not missing
