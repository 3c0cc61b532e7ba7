"""How often causes are told, on logs out of issue threads and on output of programs that succeeded."""

from collections import Counter

import diagnose_logs

from torchmill.config import facts_reader

CATALOGUE = facts_reader.read_facts(diagnose_logs.ROOT / "build_configs").causes
LOGS = diagnose_logs.read_logs(diagnose_logs.FAILED)


def test_the_right_cause_is_told_of_nearly_all_logs() -> None:
    told = Counter(diagnose_logs.outcome(CATALOGUE, log) for log in LOGS)
    assert told.total() >= 1177
    assert told["right"] >= 0.9 * told.total()
    assert told["wrong"] <= 0.01 * told.total()


def test_causes_that_are_called_right_exist_and_logs_have_an_address_of_their_own() -> None:
    names = {cause.name for cause in CATALOGUE}
    assert {name for log in LOGS for name in (*log["right"], *log.get("poor", ()))} <= names
    assert len({log["at"] for log in LOGS}) == len(LOGS)


def test_no_output_of_a_program_that_succeeded_is_taken_for_a_failure() -> None:
    harmless = diagnose_logs.read_logs(diagnose_logs.HARMLESS)
    assert len(harmless) >= 85
    assert [log["of"] for log in harmless if diagnose_logs.flagged(CATALOGUE, log)] == []
