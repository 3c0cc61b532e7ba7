"""What is said beforehand of how long a build for another machine takes."""

from torchmill.estimate import Span
from torchmill.foreign import pace
from torchmill.foreign.pace import Pace
from torchmill.model import Range

HOUR = Span(1800.0, 3600.0, 7200.0)


def test_emulation_stretches_what_the_machine_itself_would_take() -> None:
    found = Pace("aarch64", emulated=True, factor=Range(4.0, 9.0), native=HOUR)
    assert found.wall == Span(7200.0, 21600.0, 64800.0)
    said = pace.told(found)
    assert said[0].endswith("compilers take 4 to 9 times as long as natively")
    assert said[1] == "expect about 6.0 h (2.0 h to 18.0 h) with an empty compiler cache"
    assert said[2].startswith("faster: a machine that is aarch64, or GitHub's runner ubuntu-24.04-arm")


def test_without_emulation_nothing_is_slower() -> None:
    found = Pace("aarch64", emulated=False, factor=Range(4.0, 9.0), native=HOUR)
    assert found.wall == HOUR
    assert pace.told(found)[0] == "the container's machine is aarch64 itself: nothing is emulated"


def test_what_nobody_measured_is_not_said() -> None:
    unknown = Pace("x86_64", emulated=True, factor=None, native=HOUR)
    assert unknown.wall is None
    assert [line.partition(":")[0] for line in pace.told(unknown)] == [
        "every program for x86_64 is emulated here",
        "faster",
    ]
    nothing = Pace("aarch64", emulated=True, factor=Range(4.0, 9.0), native=None)
    assert nothing.wall is None
    assert not any("expect" in line for line in pace.told(nothing))
