"""Which causes of failures the doctor foresees before a build, and why it does not foresee others.

foresight.toml classifies all causes of causes.toml; the reference of failures shows it.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from torchmill.core.package_data import read_table_beside


@cache
def _tables() -> Mapping[str, Mapping[str, Any]]:
    """Return the tables of foresight.toml."""
    return read_table_beside(__file__, "foresight.toml")


def foreseen_causes() -> Mapping[str, Sequence[str]]:
    """Return the causes that the doctor foresees, each with the subjects of its findings."""
    return _tables()["foreseen"]


def unforeseen_causes() -> Mapping[str, str]:
    """Return the causes that are a matter of the machine and not foreseen, each with the reason."""
    return _reasons_by_cause(_tables()["unforeseen"])


def causes_elsewhere() -> Mapping[str, str]:
    """Return the causes that are no matter of the machine, or not in a session, with the reason."""
    return _reasons_by_cause(_tables()["elsewhere"])


def foresight_sentence(name: str) -> str:
    """Return whether the doctor foresees a cause, as a sentence; "" if it is no matter of a machine."""
    subjects = foreseen_causes().get(name)
    if subjects:
        return f"`invoke doctor SESSION` foresees it ({', '.join(subjects)})"
    reason = unforeseen_causes().get(name)
    return f"the doctor does not foresee it: {reason}" if reason else ""


def _reasons_by_cause(table: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Return the reason of each cause in a table of causes by reason."""
    return {name: reason for reason, names in table.items() for name in names}
