"""How many compilers run at once, and the reason that is given."""

import pytest

from torchmill.plan.job_count import JobCount, count_jobs, guarded_slots

GIB = 2**30


@pytest.mark.parametrize(
    ("cores", "memory", "requested", "count", "reason"),
    [
        (
            2,
            24 * GIB,
            None,
            2,
            "because of the cores (24.0 GiB of memory at 2.0 GiB a job would carry 12)",
        ),
        (
            64,
            24 * GIB,
            None,
            12,
            "because of memory (24.0 GiB of memory at 2.0 GiB a job) though there are 64",
        ),
        (12, 24 * GIB, None, 12, "because of the cores"),
        (4, GIB, None, 1, "the least possible"),
        (4, 24 * GIB, 3, 3, "3 as asked"),
        (
            4,
            4 * GIB,
            8,
            8,
            "8 as asked, more than the 2 that 4.0 GiB of memory at 2.0 GiB a job carries",
        ),
        (4, 24 * GIB, 0, 1, "1 as asked"),
    ],
)
def test_the_reason_names_what_limits_the_jobs(
    cores: int, memory: int, requested: int | None, count: int, reason: str
) -> None:
    jobs = count_jobs(cores, memory=memory, per_job=2 * GIB, requested=requested)
    assert jobs.count == count
    assert reason in jobs.reason


def test_without_a_known_appetite_the_cores_decide() -> None:
    assert count_jobs(cores=3, memory=0, per_job=0) == JobCount(
        3, "3 because of the cores (0 B of memory at 0 B a job would carry 3)"
    )


def test_under_the_guard_more_compilers_start_than_there_are_cores() -> None:
    assert [guarded_slots(cores, 2**40) for cores in (1, 2, 64)] == [6, 10, 258]


def test_no_more_start_than_can_all_be_at_their_preprocessor() -> None:
    assert [guarded_slots(64, memory) for memory in (2**20, 2**30, 4 * 2**30)] == [1, 8, 32]
