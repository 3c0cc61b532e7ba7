"""How often causes are found, in logs from issue threads and in output of programs that succeeded."""

from collections import Counter

import diagnose_cures
import diagnose_logs

from torchmill.config import facts_reader

FACTS = facts_reader.read_facts(diagnose_logs.ROOT / "build_configs")
CATALOGUE = FACTS.causes
LOGS = diagnose_logs.read_logs(diagnose_logs.FAILED)


def test_the_right_cause_is_found_in_nearly_all_logs() -> None:
    outcomes = Counter(diagnose_logs.outcome(CATALOGUE, log) for log in LOGS)
    assert outcomes.total() >= 1177
    assert outcomes["right"] >= 0.9 * outcomes.total()
    assert outcomes["wrong"] <= 0.01 * outcomes.total()


def test_the_causes_of_logs_are_in_the_catalogue() -> None:
    names = set()
    for log in LOGS:
        names.update(log["right"])
        names.update(log.get("poor", ()))
    assert names <= {cause.name for cause in CATALOGUE}


def test_each_log_has_an_address_of_its_own() -> None:
    assert len({log["at"] for log in LOGS}) == len(LOGS)


def test_no_output_of_a_program_that_succeeded_is_taken_for_a_failure() -> None:
    logs = diagnose_logs.read_logs(diagnose_logs.HARMLESS)
    assert len(logs) >= 85
    assert [log["of"] for log in logs if diagnose_logs.flagged(CATALOGUE, log)] == []


def test_the_first_command_cures_most_logs_whose_cure_is_known() -> None:
    cured = 0
    for log in diagnose_cures.read_logs():
        diagnosis = diagnose_cures.diagnose_log(FACTS, log)
        assert diagnose_cures.judge_cause(diagnosis, log) in ("right", "near"), log["at"]
        cured += diagnose_cures.cures(diagnosis, log)
    assert cured >= 0.85 * len(diagnose_cures.read_logs())
