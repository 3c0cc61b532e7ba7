"""The policy and its forecast: what they must never do in thousands of drawn situations, and chosen ones."""

import random
from dataclasses import replace

import pytest
from millguard.policy import (
    CURVE_PARTS,
    FLAT_CURVE,
    FOREVER,
    MIB,
    SOONEST,
    WAIT_LIMIT_SECONDS,
    Admit,
    MemoryForecast,
    Pause,
    PolicyInput,
    Rerun,
    Resume,
    RoomReservation,
    Unit,
    UnitForecast,
    UnitTicket,
    decide,
    next_look,
    reserved_bytes,
    spare_tokens,
)

GIB = 1024 * MIB


def late_curve(after: float, before: float = 0.1) -> tuple[float, ...]:
    """Return the curve of a unit that has its peak after a share of its time, a part of it before."""
    return tuple(1.0 if part >= after * CURVE_PARTS else before for part in range(CURVE_PARTS))


def unit(
    peak: int = 500 * MIB,
    seconds: float = 10.0,
    weight: float = 1.0,
    curve: tuple[float, ...] = FLAT_CURVE,
) -> Unit:
    return Unit("unit", peak, seconds, weight, measured=True, curve=curve)


def ticket(
    number: int, *, one: Unit | None = None, since: float = 0.0, used: int = 0
) -> UnitTicket:
    return UnitTicket(number, one or unit(), since, used=used)


def drawn(seed: int) -> PolicyInput:
    """Return a situation as it may come, however unlucky; a unit that runs alone has nobody beside it."""
    source = random.Random(seed)  # noqa: S311 - the same situation for the same seed

    def one(number: int) -> UnitTicket:
        what = Unit(
            str(number),
            source.choice((50, 300, 700, 2000, 9000)) * MIB,
            source.uniform(1, 100),
            source.choice((1.0, 1.0, 1.0, 4.0)),
            source.random() < 0.5,
            source.choice((FLAT_CURVE, late_curve(0.2), late_curve(0.9), late_curve(0.0)[::-1])),
        )
        used = source.choice((0, what.peak // 3, what.peak, 2 * what.peak))
        since = 1000 - source.choice((0.0, 1.0, 50.0, 1000.0))
        return UnitTicket(
            number, what, since, used=used, paused=1000.0 if source.random() < 0.3 else None
        )

    running = tuple(one(number) for number in range(source.choice((0, 0, 1, 2, 5, 20))))
    if running and source.random() < 0.1:
        running = (replace(running[0], alone=True),)
    waiting = tuple(
        replace(one(number), used=0, paused=None, alone=source.random() < 0.2)
        for number in range(100, 100 + source.choice((0, 1, 3, 100)))
    )
    headroom = source.choice((-GIB, 0, 20 * MIB, 60 * MIB, 200 * MIB, GIB, 5 * GIB, 500 * GIB))
    return PolicyInput(
        1000.0,
        headroom,
        headroom + sum(one.used for one in running),
        source.choice((1.0, 1.5, 4.0, 64.0)),
        waiting,
        running,
        falling=source.choice((0.0, 0.0, 1e8, 5e9)),
        lag=source.choice((0.02, 0.25)),
    )


@pytest.mark.parametrize("block", range(8))
def test_decisions_name_units_in_the_right_state(block: int) -> None:
    for seed in range(block * 150, block * 150 + 150):
        view = drawn(seed)
        decisions = decide(view)
        assert decisions == decide(view), "it follows from the view alone"
        waiting = {one.number for one in view.waiting}
        paused = {one.number for one in view.running if one.paused}
        running = {one.number for one in view.running}
        numbers = [one.number for one in decisions]
        assert len(numbers) == len(set(numbers))
        for one in decisions:
            match one:
                case Admit(number):
                    assert number in waiting
                case Pause(number):
                    assert number in running - paused
                case Resume(number):
                    assert number in paused
                case Rerun(number):
                    assert number in running
        ended = {one.number for one in decisions if isinstance(one, Rerun)}
        assert not running or running - ended, "the oldest is never ended"


@pytest.mark.parametrize("block", range(8))
def test_a_unit_that_must_run_alone_does(block: int) -> None:
    for seed in range(block * 150, block * 150 + 150):
        view = drawn(seed)
        admitted = {one.number for one in decide(view) if isinstance(one, Admit)}
        every = [*view.running, *(one for one in view.waiting if one.number in admitted)]
        if admitted and any(one.alone for one in every):
            assert len(every) == 1


@pytest.mark.parametrize("block", range(8))
def test_no_more_processors_are_kept_busy_than_there_are(block: int) -> None:
    for seed in range(block * 150, block * 150 + 150):
        view = drawn(seed)
        admitted = {one.number for one in decide(view) if isinstance(one, Admit)}
        resumed = {one.number for one in decide(view) if isinstance(one, Resume)}
        moving = [one for one in view.running if not one.paused or one.number in resumed]
        moving += [one for one in view.waiting if one.number in admitted]
        if admitted:
            assert len(moving) == 1 or sum(one.unit.weight for one in moving) <= view.cores


@pytest.mark.parametrize("block", range(8))
def test_admitted_units_fit_even_if_all_peak_at_once(block: int) -> None:
    """Where no end is known, units that were never measured, and looks come too late to risk more."""
    for seed in range(block * 150, block * 150 + 150):
        view = drawn(seed)
        guessed = tuple(
            replace(one, unit=replace(one.unit, measured=False))
            for one in (*view.running, *view.waiting)
        )
        view = replace(
            view,
            running=guessed[: len(view.running)],
            waiting=guessed[len(view.running) :],
            lag=0.25,
        )
        admitted = {one.number for one in decide(view) if isinstance(one, Admit)}
        peaks = sum(one.growth(view.now) for one in view.running)
        peaks += sum(one.unit.need for one in view.waiting if one.number in admitted)
        if admitted and not (len(admitted) == 1 and not view.running):
            assert peaks <= view.headroom - reserved_bytes(view.limit)


def test_something_always_goes_on() -> None:
    """Whatever is seen, after a few decisions something moves."""
    for seed in range(800):
        view = drawn(seed)
        for _ in range(60):
            view = carried_out(view)
            if any(one.paused is None for one in view.running):
                break
        else:
            assert not view.running, seed
            assert not view.waiting, seed


def carried_out(view: PolicyInput) -> PolicyInput:
    """Return the situation after the decisions, if the rest of the world stands still."""
    running = {one.number: one for one in view.running}
    waiting = {one.number: one for one in view.waiting}
    freed = 0
    for one in decide(view):
        match one:
            case Admit(number):
                running[number] = replace(waiting.pop(number), since=view.now)
            case Pause(number):
                running[number] = replace(running[number], paused=view.now)
            case Resume(number):
                running[number] = running[number].resumed(view.now)
            case Rerun(number):
                freed += running[number].used
                waiting[number] = replace(running.pop(number), used=0, paused=None)
    return replace(
        view,
        headroom=view.headroom + freed,
        falling=0.0,
        running=tuple(running.values()),
        waiting=tuple(waiting.values()),
    )


def test_what_takes_most_memory_for_longest_starts_first() -> None:
    waiting = tuple(ticket(number, one=unit(seconds=number)) for number in (3, 9, 5))
    assert decide(PolicyInput(0.0, 64 * GIB, 64 * GIB, 2.0, waiting)) == (Admit(9), Admit(5))


def test_a_smaller_one_passes_one_that_does_not_fit() -> None:
    large, small = ticket(1, one=unit(int(2.7 * GIB), 90.0)), ticket(2)
    running = (ticket(3, one=unit(GIB, 600.0), used=GIB),)
    view = PolicyInput(1.0, 2 * GIB, 3 * GIB, 8.0, (large, small), running)
    assert decide(view) == (Admit(2),)


def test_what_has_waited_too_long_comes_before_what_is_greater() -> None:
    old, great = ticket(1), ticket(2, one=unit(GIB, 90.0), since=WAIT_LIMIT_SECONDS)
    view = PolicyInput(WAIT_LIMIT_SECONDS, 64 * GIB, 64 * GIB, 1.0, (old, great))
    assert decide(view) == (Admit(2),)
    assert decide(replace(view, now=WAIT_LIMIT_SECONDS + 1)) == (Admit(1),)


@pytest.mark.parametrize(
    ("measured", "now"),
    [(False, 1.0), (True, WAIT_LIMIT_SECONDS + 1), (False, WAIT_LIMIT_SECONDS + 1)],
)
def test_no_unit_passes_that_would_delay_the_one_that_waits(measured: bool, now: float) -> None:
    """Where ends are guesses, or it has waited too long."""

    def one(
        number: int, peak: int, seconds: float, since: float = 0.0, used: int = 0
    ) -> UnitTicket:
        what = replace(unit(peak, seconds), measured=measured)
        return ticket(number, one=what, since=since, used=used)

    large, running = one(1, int(2.7 * GIB), 90.0), (one(3, GIB, 20.0, now - 1, GIB),)
    quick, slow, tiny = one(2, 500 * MIB, 10.0), one(2, 500 * MIB, 30.0), one(2, 50 * MIB, 30.0)
    view = PolicyInput(now, 2 * GIB, 3 * GIB, 8.0, (), running, lag=0.25)
    assert decide(replace(view, waiting=(large, quick))) == (Admit(2),), (
        "it ends before there is room"
    )
    assert decide(replace(view, waiting=(large, slow))) == ()
    assert decide(replace(view, waiting=(large, tiny))) == (Admit(2),), "it fits beside it"
    assert decide(replace(view, waiting=(slow,))) == (Admit(2),)


def guessed(number: int, peak: int, used: int = 0) -> UnitTicket:
    return ticket(number, one=replace(unit(peak, 100.0), measured=False), used=used)


def test_one_unit_may_start_beside_others_if_half_of_its_need_is_there() -> None:
    """So that no processor is idle; looks that follow each other closely can pause it in time."""
    running = (guessed(1, 1500 * MIB, 200 * MIB),)
    waiting = (guessed(2, 1500 * MIB), guessed(3, 1400 * MIB))
    view = PolicyInput(1.0, 2700 * MIB, 2900 * MIB, 2.0, waiting, running)
    assert decide(view) == (Admit(2),)
    after = replace(view, waiting=waiting[1:], running=(*running, guessed(2, 1500 * MIB)))
    assert decide(after) == (), "their peaks do not fit by now"
    assert decide(replace(view, lag=0.25)) == ()
    assert decide(replace(view, cores=1.0)) == ()
    assert decide(replace(view, ending=1)) == (), "memory is short"
    assert decide(replace(view, moving_elsewhere=1)) == (), "another build may do the same"
    measured = tuple(replace(one, unit=replace(one.unit, measured=True)) for one in waiting)
    assert decide(replace(view, waiting=measured)) == (Admit(2),)
    rests = replace(guessed(4, 400 * MIB, 300 * MIB), since=0.5, paused=1.0)
    full = replace(view, headroom=900 * MIB, running=(*running, rests))
    assert not any(isinstance(one, Admit) for one in decide(full))


def test_nothing_is_risked_that_an_impatient_unit_waits_for() -> None:
    running = (guessed(1, 1500 * MIB, 200 * MIB),)
    large, small = guessed(2, 2700 * MIB), guessed(3, 1500 * MIB)
    now = WAIT_LIMIT_SECONDS + 1
    running = (replace(running[0], since=now - 1),)
    view = PolicyInput(now, 2500 * MIB, 2700 * MIB, 2.0, (large, small), running)
    assert decide(view) == ()
    young = replace(large, since=now)
    assert decide(replace(view, waiting=(young, replace(small, since=now)))) == (Admit(3),)


def test_where_ends_are_known_no_room_lies_idle() -> None:
    large, slow = (
        ticket(1, one=unit(int(2.7 * GIB), 90.0)),
        ticket(2, one=unit(seconds=30.0)),
    )
    running = (ticket(3, one=unit(GIB, 20.0), used=GIB),)
    assert decide(PolicyInput(1.0, 2 * GIB, 3 * GIB, 8.0, (large, slow), running)) == (Admit(2),)


def test_no_room_is_kept_for_what_never_fits() -> None:
    large, slow = ticket(1, one=unit(4 * GIB, 90.0)), ticket(2, one=unit(seconds=30.0))
    running = (ticket(3, one=unit(GIB, 20.0), used=GIB),)
    view = PolicyInput(1.0, 2 * GIB, 3 * GIB, 8.0, (large, slow), running)
    assert decide(view) == (Admit(2),)
    assert decide(replace(view, now=WAIT_LIMIT_SECONDS + 1)) == (), (
        "but then all must end before it is tried alone"
    )


def test_peaks_that_do_not_meet_are_not_added_up() -> None:
    ending = ticket(1, one=unit(2 * GIB, 60.0), since=0.0, used=int(1.9 * GIB))
    new = ticket(2, one=unit(2 * GIB, 60.0, curve=late_curve(0.9)))
    view = PolicyInput(59.0, int(1.1 * GIB), 3 * GIB, 8.0, (new,), (ending,))
    assert decide(view) == (Admit(2),), "what runs ends long before the new one has grown"
    steep = replace(new, unit=unit(2 * GIB, 60.0))
    assert decide(replace(view, waiting=(steep,))) == ()
    unknown = replace(ending, unit=replace(ending.unit, measured=False))
    assert decide(replace(view, running=(unknown,))) == ()


def test_a_unit_that_counts_more_processors_than_there_are_starts_by_itself() -> None:
    wide = ticket(1, one=unit(weight=4.0))
    assert decide(PolicyInput(0.0, 64 * GIB, 64 * GIB, 2.0, (wide,))) == (Admit(1),)
    assert decide(PolicyInput(0.0, 64 * GIB, 64 * GIB, 2.0, (wide,), (ticket(2),))) == ()


def test_fewer_processors_than_before_start_nothing_and_stop_nothing() -> None:
    running = tuple(ticket(number, used=500 * MIB) for number in range(8))
    assert decide(PolicyInput(1.0, 64 * GIB, 68 * GIB, 2.0, (ticket(9),), running)) == ()


def test_the_youngest_are_paused_when_what_they_grow_by_is_not_there() -> None:
    running = tuple(ticket(number, since=number, used=100 * MIB) for number in range(4))
    decisions = decide(PolicyInput(9.0, 430 * MIB, 830 * MIB, 8.0, (), running))
    assert decisions == (Pause(1), Pause(2), Pause(3))


def test_what_ends_before_the_oldest_wants_its_memory_is_not_paused_for_it() -> None:
    """Its end makes room; were it paused, there would be room for it to go on, again and again."""
    late = unit(4 * GIB, 400.0, curve=late_curve(0.9, 0.25))
    oldest = ticket(1, one=late, since=0.0, used=GIB)
    rests = replace(ticket(2, one=unit(2 * GIB, 400.0), since=1.0, used=GIB), paused=100.0)
    small = ticket(3, one=unit(300 * MIB, 20.0), since=99.0, used=200 * MIB)
    view = PolicyInput(100.0, GIB, 3 * GIB, 8.0, (), (oldest, rests, small))
    assert decide(view) == ()
    paused = replace(view, running=(oldest, rests, replace(small, paused=100.0)))
    assert decide(paused) == (Resume(3),)
    later = replace(small, unit=unit(600 * MIB, 600.0))
    assert decide(replace(view, running=(oldest, rests, later))) == (), "there is time for that"
    later_paused = replace(later, paused=100.0)
    assert decide(replace(view, running=(oldest, rests, later_paused))) == (), (
        "it would be there by then"
    )
    steep = replace(oldest, unit=replace(late, curve=late_curve(0.25, 0.25)))
    assert decide(replace(view, running=(steep, rests, small))) == (Pause(3),), (
        "the oldest wants its memory now"
    )


@pytest.mark.parametrize("block", range(8))
def test_what_is_paused_is_not_let_go_on_at_once(block: int) -> None:
    """While others take nothing more; else it rests until they are done."""
    for seed in range(block * 150, block * 150 + 150):
        view = replace(drawn(seed), falling=0.0)
        decisions = decide(view)
        if not any(isinstance(one, Rerun) for one in decisions):
            paused = {one.number for one in decisions if isinstance(one, Pause)}
            then = decide(carried_out(view))
            assert not paused & {one.number for one in then if isinstance(one, Resume)}


def test_what_is_expected_to_fit_is_left_alone_however_little_is_left() -> None:
    running = tuple(ticket(number, since=number, used=510 * MIB) for number in range(4))
    assert decide(PolicyInput(9.0, 100 * MIB, 2140 * MIB, 8.0, (), running)) == ()


def test_the_youngest_is_ended_when_nothing_is_left() -> None:
    running = tuple(ticket(number, since=number, used=400 * MIB) for number in range(3))
    decisions = decide(PolicyInput(9.0, 10 * MIB, 1210 * MIB, 8.0, (), running))
    assert Rerun(2) in decisions
    assert [one for one in decisions if isinstance(one, Rerun)] == [Rerun(2)]
    assert Pause(0) in decisions, "all stand still until its memory is back"


def test_nobody_is_ended_twice_for_the_same_memory() -> None:
    running = tuple(ticket(number, since=number, used=400 * MIB) for number in range(3))
    view = PolicyInput(9.0, 10 * MIB, 1210 * MIB, 8.0, (), running, ending=400 * MIB)
    assert not any(isinstance(one, Rerun) for one in decide(view))


def test_a_paused_unit_is_ended_before_the_oldest_alone_takes_the_last_memory() -> None:
    """As nvcc's last stage did below 3 GiB: 200 MiB in a quarter of a second, beside a paused compile."""
    paces = ((308.0, 800), (150.0, 800), (79.0, 700), (79.0, 200))  # MiB, MiB a second
    for headroom_before, pace in paces:
        oldest = replace(guessed(1, 2048 * MIB), used=2440 * MIB)
        neighbour = replace(guessed(2, 650 * MIB), since=1.0, used=336 * MIB, paused=4.0)
        wanted = oldest.used + 350 * MIB
        headroom, step, back = int(headroom_before) * MIB, 0.01, None
        running = [oldest, neighbour]
        now, falling = 200.0, 0.0
        while running[0].used < wanted:
            assert headroom > 0, "the kernel kills"
            assert now < 210.0, "nothing goes on"
            limit = headroom + sum(one.used for one in running)
            view = PolicyInput(
                now, headroom, limit, 2.0, (), tuple(running), falling=falling, lag=step
            )
            for one in decide(view):
                match one:
                    case Pause(1):
                        running[0] = replace(running[0], paused=now)
                    case Resume(1):
                        running[0] = running[0].resumed(now)
                    case Rerun(2):
                        back = now + 0.06
                        running.pop()
            if back is not None and now >= back:
                headroom, back = headroom + neighbour.used, None
            taken = 0 if running[0].paused else int(pace * MIB * step)
            running[0] = replace(running[0], used=running[0].used + taken)
            headroom -= taken
            now, falling = now + step, taken / step
        assert len(running) == 1


def test_only_the_time_between_pauses_counts() -> None:
    runs = ticket(1, since=10.0)
    assert runs.ran(12.0) == 2
    rests = replace(runs, paused=12.0)
    assert rests.ran(15.0) == 2
    assert rests.resumed(16.0).ran(17.0) == 3
    again = replace(rests.resumed(16.0), paused=18.0)
    assert again.resumed(20.0).ran(21.0) == 5


def test_the_oldest_goes_on_first() -> None:
    running = tuple(
        replace(ticket(number, since=number, used=300 * MIB), paused=9.0) for number in range(3)
    )
    assert decide(PolicyInput(9.0, 150 * MIB, 1050 * MIB, 8.0, (), running)) == (Resume(0),)
    assert decide(PolicyInput(9.0, 4 * GIB, 5 * GIB, 8.0, (), running)) == (
        Resume(0),
        Resume(1),
        Resume(2),
    )


def test_memory_that_falls_fast_is_looked_at_soon() -> None:
    running = tuple(ticket(number) for number in range(4))
    calm = PolicyInput(9.0, 60 * GIB, 64 * GIB, 8.0, (), running)
    assert next_look(calm) > 4 * SOONEST
    assert next_look(replace(calm, headroom=600 * MIB)) < next_look(calm)
    assert next_look(replace(calm, falling=300e9)) < next_look(calm)
    assert next_look(replace(calm, headroom=0)) == SOONEST


def test_tokens_stand_for_processors_and_for_memory() -> None:
    view = PolicyInput(9.0, 64 * GIB, 64 * GIB, 8.0, (), (ticket(1),))
    assert spare_tokens(view, 500 * MIB) == 7
    assert spare_tokens(replace(view, tokens=3), 500 * MIB) == 5
    assert spare_tokens(replace(view, waiting=(ticket(2),)), 500 * MIB) == 0
    assert spare_tokens(replace(view, headroom=GIB, limit=GIB), 500 * MIB) == 0


def forecast(
    remaining: float, used: int, growth: int, *, guess: float = 5.0, peak_after: float = 0.0
) -> UnitForecast:
    """Return the forecast of a unit that takes all of its growth after a share of 10 seconds."""
    if remaining != FOREVER:
        guess = remaining
    what = Unit("unit", used + growth, 10.0, curve=late_curve(peak_after, used / (used + growth)))
    return UnitForecast(remaining, used, growth, guess, what)


def test_peaks_are_added_up_where_no_end_is_known() -> None:
    future = MemoryForecast(100, [forecast(FOREVER, 50, 40)])
    assert future.fits(forecast(10.0, 0, 60))
    assert not future.fits(forecast(10.0, 0, 61))


def test_what_ends_gives_back_all() -> None:
    future = MemoryForecast(100, [forecast(2.0, 50, 40)])
    late = forecast(10.0, 0, 150, peak_after=0.6)
    assert future.fits(late), (
        "it takes nothing until the other has ended; then it has the 50 as well"
    )
    assert not future.fits(forecast(10.0, 0, 151, peak_after=0.6))
    assert not future.fits(forecast(10.0, 0, 150, peak_after=0.2)), "too early"
    assert not future.fits(forecast(1.0, 0, 61)), "it ends before the other does"


def test_humps_that_do_not_meet_are_not_added_up() -> None:
    hump = (0.2,) * 4 + (1.0,) * 4 + (0.2,) * 16
    what = Unit("unit", 1000, 240.0, curve=hump)

    def started(ago: float) -> UnitForecast:
        used = int(what.highest(ago, ago))
        growth = int(what.highest(ago, FOREVER)) - used
        return UnitForecast(300.0 - ago, used, growth, 300.0 - ago, what, ago)

    new = UnitForecast(300.0, 0, 1000, 300.0, what)
    for ago, fits in ((0.0, False), (20.0, False), (60.0, True), (100.0, True)):
        running = started(ago)
        assert MemoryForecast(1200 - running.used, [running]).fits(new) == fits, ago
    running = started(60.0)
    assert not MemoryForecast(1199 - running.used, [running]).fits(new), "one keeps 200"


def test_a_unit_may_be_early_or_late() -> None:
    what = Unit("unit", 1000, 240.0, curve=(0.2,) * 4 + (1.0,) * 4 + (0.2,) * 16)
    assert what.highest(10.0, 30.0) == 200
    assert what.highest(30.0, 39.0) == 1000, "the peak comes after 40 seconds, or a little earlier"
    assert what.highest(81.0, 200.0) == 1000, "it ends after 80 seconds, or a little later"
    assert what.highest(100.0, FOREVER) == 200
    assert what.highest(500.0, 500.0) == 200, "it has not ended yet"


def test_what_is_added_counts() -> None:
    future = MemoryForecast(100, [])
    new = forecast(FOREVER, 0, 60)
    assert future.fits(new)
    future.add(new)
    assert not future.fits(new)


def test_one_by_one_is_as_all_at_once() -> None:
    source = random.Random(1)  # noqa: S311 - the same units each time

    def drawn() -> UnitForecast:
        left = source.choice((FOREVER, 1.0, 2.0, source.uniform(1, 9)))
        used, growth = source.randrange(40), source.randrange(1, 40)
        return forecast(left, used, growth, peak_after=source.uniform(0, 0.9))

    answers = set()
    for _ in range(300):
        units, new = [drawn() for _ in range(6)], drawn()
        future = MemoryForecast(90, units[:3])
        for count, one in enumerate(units[3:], 4):
            future.fits(new)
            future.add(one)
            answers.add(future.fits(new))
            assert future.fits(new) == MemoryForecast(90, units[:count]).fits(new)
    assert answers == {True, False}


def test_nothing_counts_that_is_further_away_than_asked_for() -> None:
    late = forecast(10.0, 0, 150, peak_after=0.6)
    assert not MemoryForecast(100, []).fits(late)
    assert MemoryForecast(100, [], ahead=2.0).fits(late)


def test_room_is_kept_from_when_enough_has_ended() -> None:
    running = [forecast(FOREVER, 30, 10, guess=4.0), forecast(2.0, 20, 10)]
    future = MemoryForecast(40, running)
    assert future.reserve(21) == RoomReservation(2.0, 29), (
        "20 are free, and 30 more when the second has ended"
    )
    assert future.reserve(50) == RoomReservation(2.0, 0)
    assert future.reserve(51) == RoomReservation(4.0, 39)
    assert future.reserve(91) is None, "more than there is when nothing runs"


def test_only_those_pass_that_end_in_time_or_fit_beside() -> None:
    kept = RoomReservation(10.0, 50)
    assert kept.lets_pass(forecast(10.0, 0, 900)), "it has ended by then"
    assert kept.lets_pass(forecast(FOREVER, 0, 900, guess=9.0)), "so it is thought"
    assert kept.lets_pass(forecast(11.0, 0, 30))
    assert not kept.lets_pass(forecast(11.0, 0, 30)), "there is room for one such only"
    assert kept.lets_pass(forecast(FOREVER, 0, 20, guess=11.0))
