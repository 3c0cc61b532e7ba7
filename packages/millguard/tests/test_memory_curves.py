"""Curves of a unit's memory over its time."""

from millguard.memory_curves import CurveRecorder
from millguard.policy import CURVE_PARTS, FLAT_CURVE


def recorded(looks: dict[float, int]) -> CurveRecorder:
    recorder = CurveRecorder()
    for second, used in looks.items():
        recorder.add(second, used)
    return recorder


def test_a_hump_is_where_it_was_however_long_the_run_takes() -> None:
    for scale in (1, 10, 1000):
        looks = {}
        for second in range(240):
            looks[second * scale / 10] = 1000 if 80 <= second < 120 else 250
        curve = recorded(looks).curve(24.0 * scale, 1000)
        assert len(curve) == CURVE_PARTS
        assert all(share == 1.0 for share in curve[8:12])
        # A part of a recording may begin in one part of the curve and end in the next.
        assert all(share == 0.25 for share in (*curve[:7], *curve[13:]))


def test_no_memory_is_assumed_between_looks_that_the_next_look_does_not_see() -> None:
    curve = recorded({0.0: 100, 5.0: 100, 7.5: 400, 9.5: 200}).curve(10.0, 400)
    assert curve[CURVE_PARTS // 4] == 0.25
    assert curve[int(0.6 * CURVE_PARTS)] == 1.0, "it may have had it before it was seen"
    assert curve[int(0.9 * CURVE_PARTS)] == 1.0, "and until it was seen to have less"
    assert curve[-1] == 0.5


def test_shares_are_rounded_up() -> None:
    assert recorded({0.0: 1, 1.0: 1, 2.0: 1000}).curve(2.0, 1000)[0] == 0.01


def test_a_unit_that_nobody_saw_has_a_flat_curve() -> None:
    assert recorded({}).curve(1.0, 1000) == FLAT_CURVE
    assert recorded({0.5: 0}).curve(1.0, 0) == FLAT_CURVE
    assert recorded({0.5: 400}).curve(1.0, 1000) == FLAT_CURVE, "nobody saw half of its peak"


def test_a_long_run_is_recorded_in_few_parts() -> None:
    recorder = CurveRecorder()
    for look in range(100_000):
        recorder.add(look / 10, look)
    curve = recorder.curve(10_000.0, 100_000)
    assert list(curve) == sorted(curve)
    assert curve[0] < 0.07
