"""What is said beforehand of how long a build for another machine takes."""

from torchmill.commands import cross_build
from torchmill.commands.cross_build import CrossPace
from torchmill.config.cost_model import CostRange
from torchmill.plan.estimate import EstimateSpan

HOUR = EstimateSpan(1800.0, 3600.0, 7200.0)


def test_emulation_stretches_what_the_machine_itself_would_take() -> None:
    found = CrossPace("aarch64", emulated=True, factor=CostRange(4.0, 9.0), native=HOUR)
    assert found.wall == EstimateSpan(7200.0, 21600.0, 64800.0)
    said = cross_build.describe_pace(found)
    assert said[0].endswith("compilers take 4 to 9 times as long as natively")
    assert said[1] == "expect about 6.0 h (2.0 h to 18.0 h) with an empty compiler cache"
    assert said[2].startswith("faster: a machine that is aarch64, or GitHub's runner ubuntu-24.04-arm")


def test_without_emulation_nothing_is_slower() -> None:
    found = CrossPace("aarch64", emulated=False, factor=CostRange(4.0, 9.0), native=HOUR)
    assert found.wall == HOUR
    assert (
        cross_build.describe_pace(found)[0]
        == "the container's machine is aarch64 itself: nothing is emulated"
    )


def test_what_nobody_measured_is_not_said() -> None:
    unknown = CrossPace("x86_64", emulated=True, factor=None, native=HOUR)
    assert unknown.wall is None
    assert [line.partition(":")[0] for line in cross_build.describe_pace(unknown)] == [
        "every program for x86_64 is emulated here",
        "faster",
    ]
    nothing = CrossPace("aarch64", emulated=True, factor=CostRange(4.0, 9.0), native=None)
    assert nothing.wall is None
    assert not any("expect" in line for line in cross_build.describe_pace(nothing))
