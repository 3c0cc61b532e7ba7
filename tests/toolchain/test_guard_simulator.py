"""The simulator, and the policy on machines that it imagines: nothing is killed, and little time is lost."""

import random
import time
from collections.abc import Callable, Sequence
from functools import cache

import pytest
from guard_simulator import (
    ImaginedMachine,
    ImaginedUnit,
    MemoryCurve,
    early_curve,
    late_curve,
    linear_curve,
    lower_bound,
    measured_curve,
    recorded_curve,
    sawtooth_curve,
    simulate_build,
)
from millguard.policy import CURVE_PARTS, MIB, Admit, Decision, PolicyInput, Unit, decide

GIB = 1024 * MIB


def mixed(seed: int, count: int, curve: MemoryCurve, *, weight: float = 1.0) -> list[ImaginedUnit]:
    """Return units of 60 MiB to 1.4 GiB; those of more processors need more."""
    source = random.Random(seed)  # noqa: S311 - the same build for the same seed
    jobs = []
    for number in range(count):
        wide = weight if number % 4 == 0 else 1.0
        peak = int(source.choice((60, 400, 500, 600, 1400)) * MIB * wide)
        jobs.append(ImaginedUnit(f"{number}", peak, source.uniform(2, 40), wide, curve))
    return jobs


curve_of = cache(measured_curve)


def known(job: ImaginedUnit) -> Unit:
    curve = curve_of(job.curve)
    return Unit(job.key, job.peak, job.seconds, job.weight, measured=True, curve=curve)


def wrong(job: ImaginedUnit) -> Unit:
    """Expect half of what a third of the units need."""
    unit = known(job)
    return (
        unit
        if int(job.key) % 3
        else Unit(job.key, job.peak // 2, job.seconds, job.weight, measured=True)
    )


def unknown(job: ImaginedUnit) -> Unit:
    return Unit(job.key, 500 * MIB, 10.0, job.weight)


def at_once(number: int) -> Callable[[PolicyInput], list[Decision]]:
    """Return a policy that lets a fixed number of compilers run."""

    def decide(view: PolicyInput) -> list[Decision]:
        free = number - len(view.running)
        return [Admit(compiler.number) for compiler in view.waiting[:free]]

    return decide


def test_time_and_memory_are_as_the_units_say() -> None:
    jobs = [
        ImaginedUnit("a", 100 * MIB, 10.0),
        ImaginedUnit("b", 100 * MIB, 6.0),
        ImaginedUnit("c", 100 * MIB, 4.0),
    ]
    outcome = simulate_build(jobs, ImaginedMachine(GIB, 2, 2), at_once(2), known)
    assert outcome.seconds == pytest.approx(10.0)
    assert outcome.kills == 0
    assert 150 * MIB < outcome.busiest <= 200 * MIB


def test_too_many_share_the_processors() -> None:
    jobs = [ImaginedUnit("a", MIB, 10.0, 2.0), ImaginedUnit("b", MIB, 10.0, 2.0)]
    assert simulate_build(
        jobs, ImaginedMachine(GIB, 2, 2), at_once(2), known
    ).seconds == pytest.approx(20.0)


def test_the_outcome_does_not_depend_on_how_fast_this_machine_is() -> None:
    jobs = mixed(1, 6, sawtooth_curve)
    machine = ImaginedMachine(GIB, 4, 8)

    def slow(view: PolicyInput) -> Sequence[Decision]:
        time.sleep(0.0005)
        return decide(view)

    assert simulate_build(jobs, machine, slow, known) == simulate_build(
        jobs, machine, decide, known
    )


def test_compilers_that_are_started_one_after_another_ask_one_after_another() -> None:
    jobs = [ImaginedUnit(f"{number}", MIB, 10.0) for number in range(4)]
    outcome = simulate_build(jobs, ImaginedMachine(GIB, 4, 4, spacing=0.5), at_once(4), known)
    assert outcome.seconds == pytest.approx(11.5)
    outcome = simulate_build(jobs, ImaginedMachine(GIB, 4, 2, spacing=0.5), at_once(4), known)
    assert outcome.seconds == pytest.approx(20.5), "two more when the first two have ended"


def test_a_great_unit_that_comes_late_is_not_kept_waiting_to_the_end() -> None:
    small = [ImaginedUnit(f"{number}", 400 * MIB, 10.0 + number) for number in range(20)]
    jobs = [*small, ImaginedUnit("great", int(1.6 * GIB), 60.0)]
    machine = ImaginedMachine(2 * GIB, 8, 30, spacing=0.01)
    bound = lower_bound(jobs, machine)
    assert simulate_build(jobs, machine, decide, known).seconds < 1.25 * bound
    assert simulate_build(jobs, machine, decide, unknown).kills == 0


@pytest.mark.parametrize("predict", [known, unknown])
def test_few_large_units_run_together_although_their_margins_do_not_fit(
    predict: Callable[[ImaginedUnit], Unit],
) -> None:
    large = [ImaginedUnit(f"{number}", int(1.5 * GIB), 26.6) for number in range(6)]
    jobs = [*large, *(ImaginedUnit(f"small {number}", GIB // 8, 0.7) for number in range(18))]
    machine = ImaginedMachine(3 * GIB, 2, 10)
    guarded = simulate_build(jobs, machine, decide, predict)
    fixed = simulate_build(jobs, machine, at_once(2), predict)
    assert guarded.kills == 0
    assert guarded.seconds < 1.1 * fixed.seconds


def test_the_kernel_ends_the_largest_when_memory_is_out() -> None:
    jobs = [ImaginedUnit("a", 700 * MIB, 10.0), ImaginedUnit("b", 500 * MIB, 10.0)]
    outcome = simulate_build(jobs, ImaginedMachine(GIB, 2, 2), at_once(2), known)
    assert outcome.kills == 1
    assert outcome.lost > 0
    assert outcome.seconds > 15, "it ran again"


def test_a_policy_that_starts_nothing_comes_to_no_end() -> None:
    with pytest.raises(RuntimeError, match="the build is not done"):
        simulate_build(
            [ImaginedUnit("a", MIB, 1.0)], ImaginedMachine(GIB, 1, 1), lambda _: (), known
        )


def test_the_lower_bound_is_of_processors_of_memory_and_of_the_longest() -> None:
    jobs = [ImaginedUnit("a", GIB, 10.0), ImaginedUnit("b", GIB, 10.0, 3.0)]
    assert lower_bound(jobs, ImaginedMachine(4 * GIB, 2, 8)) == 20.0
    assert lower_bound(jobs, ImaginedMachine(GIB // 2, 64, 8)) == 40.0
    assert lower_bound(jobs, ImaginedMachine(64 * GIB, 64, 8)) == 10.0


def test_curves() -> None:
    for curve in (
        linear_curve,
        early_curve,
        late_curve,
        sawtooth_curve,
        recorded_curve((0.5, 1.0, 0.2)),
    ):
        assert all(0 <= curve(step / 100) <= 1 for step in range(101))
    assert recorded_curve((0.5, 1.0, 0.2))(0.5) == pytest.approx(0.75)
    measured = measured_curve(recorded_curve((0.5, 1.0, 0.2)))
    assert len(measured) == CURVE_PARTS
    assert max(measured) == 1.0
    assert measured[-1] == pytest.approx(0.3, abs=0.001)


@pytest.mark.parametrize("curve", [linear_curve, early_curve, late_curve, sawtooth_curve])
@pytest.mark.parametrize("delay", [0.02, 0.1])
def test_nothing_is_killed_where_the_needs_are_known(curve: MemoryCurve, delay: float) -> None:
    jobs = mixed(1, 40, curve)
    machine = ImaginedMachine(int(2.3 * GIB), 8, 18, delay)
    outcome = simulate_build(jobs, machine, decide, known)
    assert outcome.kills == 0
    assert outcome.seconds < 1.5 * lower_bound(jobs, machine)


@pytest.mark.parametrize("predict", [wrong, unknown])
@pytest.mark.parametrize("curve", [linear_curve, sawtooth_curve])
def test_nothing_is_killed_where_they_are_not(
    curve: MemoryCurve, predict: Callable[[ImaginedUnit], Unit]
) -> None:
    jobs = mixed(1, 40, curve)
    machine = ImaginedMachine(3 * GIB, 8, 18)
    outcome = simulate_build(jobs, machine, decide, predict)
    assert outcome.kills == 0
    assert outcome.seconds < 2 * lower_bound(jobs, machine)


@pytest.mark.parametrize(("memory", "cores", "count"), [(2 * GIB, 2, 30), (1024 * GIB, 256, 260)])
def test_small_and_large_machines(memory: int, cores: int, count: int) -> None:
    jobs = mixed(1, count, linear_curve, weight=4.0)
    if cores == 2:
        jobs = mixed(1, count, linear_curve)
    machine = ImaginedMachine(memory, cores, 2 * cores + 2)
    outcome = simulate_build(jobs, machine, decide, known)
    assert outcome.kills == 0
    assert outcome.seconds < 1.6 * lower_bound(jobs, machine)


def test_units_give_way_to_an_intruder_and_run_again() -> None:
    machine = ImaginedMachine(4 * GIB, 8, 18)

    def intruder(now: float) -> int:
        grown = min(1.0, max(0.0, now - 20)) if now < 40 else 0.0  # in a second, for twenty
        return int(1.6 * GIB * grown)

    jobs = mixed(1, 40, linear_curve)
    alone = simulate_build(jobs, machine, decide, known)
    outcome = simulate_build(jobs, machine, decide, known, intruder=intruder)
    assert outcome.kills == 0
    assert outcome.reruns + outcome.pauses > 0
    assert outcome.seconds - alone.seconds < 20, "as long as it stayed"


def test_a_unit_larger_than_the_machine_allows_is_tried_alone() -> None:
    jobs = [ImaginedUnit("large", int(1.95 * GIB), 10.0), *mixed(1, 10, linear_curve)]
    outcome = simulate_build(jobs, ImaginedMachine(2 * GIB, 4, 10), decide, known)
    assert outcome.kills == 0
