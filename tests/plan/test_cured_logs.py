"""The first command that a diagnosis offers cures most logs of imports, installers and drivers."""

import re
import tomllib
from collections.abc import Mapping

import pytest

from torchmill.config import facts_reader
from torchmill.core.paths import CHECKOUT
from torchmill.plan import causes
from torchmill.plan.diagnosis.cure_order import first_command

FACTS = facts_reader.read_facts(CHECKOUT / "build_configs")
LOGS = tomllib.loads((CHECKOUT / "benchmarks/data/cured_logs.toml").read_text("utf-8"))["log"]
CURED = [log for log in LOGS if "command" in log]


def test_nearly_all_logs_are_cured() -> None:
    assert len(CURED) >= 0.9 * len(LOGS)
    assert len({log["at"] for log in LOGS}) == len(LOGS)


@pytest.mark.parametrize("log", CURED, ids=lambda log: log["at"])
def test_the_first_command_cures_the_log(log: Mapping[str, str]) -> None:
    match = causes.diagnose(FACTS.causes, log["said"].splitlines(), rules=FACTS).match
    assert match is not None
    command = first_command(match.cause.cure)
    assert re.search(log["command"], command), command
