"""What the guard's process is told."""

import os

import pytest

from torchmill.config.model import KnownUnit
from torchmill.toolchain.guard.command import GuardCommand, GuardStarter, parse_command

ORDERS = GuardCommand(
    folder="/run/ä b",
    timeline="/logs/t.jsonl",
    history="/cache/units.sqlite",
    roots=("/src", "/build"),
    cores=None,
    memory=12 * 2**30,
    known=(KnownUnit("*/Register*.cpp", 2**30, 60.0), KnownUnit("*.cu", 2**32, 300.0)),
)


def test_orders_survive_the_way() -> None:
    line = ORDERS.as_line()
    assert "\n" not in line
    assert parse_command(line) == ORDERS


@pytest.mark.parametrize(
    "line", ["", "nonsense", "[]", "7", "{}", '{"known":[]}', '{"known":[{"x":1}],"roots":[]}']
)
def test_what_is_no_order_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match=r"no orders for the guard: |Expecting value"):
        parse_command(line)


def test_a_superior_is_heard_to_the_end() -> None:
    reading, writing = os.pipe()
    superior = GuardStarter(reading)
    os.write(writing, ORDERS.as_line().encode() + b"\n")
    assert parse_command(superior.first_line()) == ORDERS
    assert not superior.wants_the_end
    os.write(writing, b"end\n")
    superior.hear()
    os.close(writing)
    superior.hear()
    assert superior.wants_the_end
    assert not superior.gone
    os.close(reading)


def test_the_end_may_come_with_the_orders() -> None:
    reading, writing = os.pipe()
    superior = GuardStarter(reading)
    os.write(writing, b"{}\nend\n")
    assert superior.first_line() == "{}"
    assert superior.wants_the_end
    os.close(writing)
    os.close(reading)


def test_one_that_goes_without_a_word_is_gone() -> None:
    reading, writing = os.pipe()
    superior = GuardStarter(reading)
    os.close(writing)
    assert superior.first_line() == ""
    assert superior.gone
    os.close(reading)
