"""The jobserver: what lies in the fifo, what clients hold, and real clients that obey it."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from guard_support.guards import Guard, orders, until
from millguard import jobserver
from millguard.jobserver import TokenPool

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no fifos")

# Takes tokens, says how many it got, and brings them back when its standard input ends.
CLIENT = """
import os, sys
fifo = os.open(sys.argv[1], os.O_RDWR | os.O_NONBLOCK)
try:
    got = os.read(fifo, int(sys.argv[2]))
except BlockingIOError:
    got = b""
print(len(got), flush=True)
sys.stdin.read()
os.write(fifo, got)
"""


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[TokenPool]:
    made = TokenPool(tmp_path)
    yield made
    made.close()


@contextmanager
def client(folder: Path, wants: int) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Yield a process that holds tokens, and how many."""
    argv = [sys.executable, "-c", CLIENT, str(folder / "jobs"), str(wants)]
    with subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        yield process, int(process.stdout.readline())


def lying(folder: Path) -> int:
    """Return the number of tokens in the fifo."""
    import fcntl
    import termios

    file = os.open(folder / "jobs", os.O_RDWR | os.O_NONBLOCK)
    try:
        return int.from_bytes(fcntl.ioctl(file, termios.FIONREAD, bytes(4)), sys.byteorder)
    finally:
        os.close(file)


@pytest.mark.parametrize("offers", [(3,), (3, 1), (0,), (2, 5, 0, 4), (1, 1, 1)])
def test_what_is_offered_last_lies_in_the_fifo(
    pool: TokenPool, tmp_path: Path, offers: tuple[int, ...]
) -> None:
    for free in offers:
        pool.offer(free)
    assert lying(tmp_path) == offers[-1]
    assert pool.held == 0


def test_what_clients_took_is_held_until_they_bring_it_back(
    pool: TokenPool, tmp_path: Path
) -> None:
    pool.offer(3)
    with client(tmp_path, 2) as (_, got):
        assert (got, pool.held, lying(tmp_path)) == (2, 2, 1)
        pool.offer(0)  # memory is short: nobody else starts, and what is held stays held
        assert (pool.held, lying(tmp_path)) == (2, 0)
    assert (pool.held, lying(tmp_path)) == (0, 2)
    pool.offer(1)
    assert (pool.held, lying(tmp_path)) == (0, 1)


def test_nobody_gets_more_than_was_offered(pool: TokenPool, tmp_path: Path) -> None:
    pool.offer(2)
    with client(tmp_path, 9) as (_, got), client(tmp_path, 9) as (_, got_then):
        assert (got, got_then) == (2, 0)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux says who has a fifo open")
def test_tokens_of_a_killed_client_are_made_again(pool: TokenPool, tmp_path: Path) -> None:
    pool.offer(2)
    with client(tmp_path, 2) as (process, _):
        pool.forget_lost()
        assert pool.held == 2  # it lives
        process.send_signal(signal.SIGKILL)
        process.wait(60)
        assert pool.held == 2
        pool.forget_lost()
        assert pool.held == 0
    pool.offer(2)
    assert lying(tmp_path) == 2


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux says who has a fifo open")
def test_offering_finds_lost_tokens_by_itself(
    pool: TokenPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobserver, "SEARCH_INTERVAL_SECONDS", 0.0)
    pool.offer(1)
    with client(tmp_path, 1) as (process, _):
        process.kill()
        process.wait(60)
    pool.offer(1)
    assert (pool.held, lying(tmp_path)) == (0, 1)


def test_a_token_given_up_too_early_does_not_count_twice(pool: TokenPool, tmp_path: Path) -> None:
    pool.offer(1)
    file = os.open(tmp_path / "jobs", os.O_RDWR)
    token = os.read(file, 1)
    os.close(file)  # a client that opens the fifo for every token
    pool.forget_lost()
    pool.offer(1)
    file = os.open(tmp_path / "jobs", os.O_RDWR)
    os.write(file, token)
    os.close(file)
    assert pool.held == 0
    pool.offer(1)
    assert (pool.held, lying(tmp_path)) == (0, 1)


def test_without_a_place_for_a_fifo_nothing_is_offered(tmp_path: Path) -> None:
    pool = TokenPool(tmp_path / "not there")
    pool.offer(4)
    assert pool.held == 0
    pool.close()
    with jobserver.hold_open(tmp_path / "not there") as fifo:
        assert fifo is None


def test_a_file_in_the_place_of_the_fifo_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "jobs").write_text("text")
    pool = TokenPool(tmp_path)
    pool.offer(4)
    jobserver.withdraw_tokens(tmp_path / "jobs")
    assert (pool.held, (tmp_path / "jobs").read_text()) == (0, "text")


def test_taking_back_tokens_makes_no_fifo(tmp_path: Path) -> None:
    jobserver.withdraw_tokens(tmp_path / "jobs")
    assert list(tmp_path.iterdir()) == []


def test_the_fifo_outlives_the_guard_but_no_new_job_does(tmp_path: Path) -> None:
    with jobserver.hold_open(tmp_path) as fifo:
        assert fifo is not None
        guard = TokenPool(tmp_path)
        guard.offer(3)
        guard.close()
        # this open waits for ever where nobody has the fifo open
        subprocess.run(["sh", "-c", f"exec 3<'{fifo}'"], check=True, timeout=60)
        assert lying(tmp_path) == 3
        jobserver.withdraw_tokens(fifo)
        assert lying(tmp_path) == 0


def test_a_guard_offers_what_no_unit_keeps_busy(tmp_path: Path) -> None:
    with Guard(orders(tmp_path, cores=2)) as guard:
        until(lambda: lying(tmp_path) == 2)
        gates = [guard.gate("a.c")]
        assert gates[0].hear() == "go"
        until(lambda: lying(tmp_path) == 1)
        gates.append(guard.gate("b.c"))
        assert gates[1].hear() == "go"
        until(lambda: lying(tmp_path) == 0)
        for gate in gates:
            gate.close()
        until(lambda: lying(tmp_path) == 2)


def test_units_behind_tokens_are_admitted_all_the_same(tmp_path: Path) -> None:
    with Guard(orders(tmp_path, cores=2)) as guard:
        until(lambda: lying(tmp_path) == 2)
        with client(tmp_path, 2) as (_, got):
            assert got == 2
            gates = [
                guard.gate(name) for name in ("a.c", "b.c")
            ]  # make's: it holds a token for each
            assert [gate.hear() for gate in gates] == ["go", "go"]
            for gate in gates:
                gate.close()
        until(lambda: lying(tmp_path) == 2)


@pytest.mark.parametrize(
    ("users", "ours"),
    [
        ("", "--jobserver-auth=fifo:/g/jobs"),
        ("k", "k --jobserver-auth=fifo:/g/jobs"),
        (" -j8", "-j8 --jobserver-auth=fifo:/g/jobs"),
        ("k -- X=1 Y=2", "k --jobserver-auth=fifo:/g/jobs -- X=1 Y=2"),
        (" -- X=1", "--jobserver-auth=fifo:/g/jobs -- X=1"),
        ("k --", "k --jobserver-auth=fifo:/g/jobs --"),
        (" -j4 --jobserver-auth=3,4", None),
        (" -j4 --jobserver-fds=3,4", None),
        (" -j4 --jobserver-auth=fifo:/tmp/theirs", None),
    ],
)
def test_the_users_flags_stay(users: str, ours: str | None) -> None:
    flags = jobserver.makeflags(users, Path("/g/jobs"))
    assert (flags if flags is None else flags.strip()) == ours


def test_no_client_takes_a_path_with_a_blank() -> None:
    assert jobserver.makeflags("", Path("/my builds/jobs")) is None


@pytest.mark.parametrize(
    ("script", "given"),
    [
        ("echo GNU Make 4.3", False),  # it would end with an error
        ("echo GNU Make 4.4; echo Built for x86_64-pc-linux-gnu", True),
        ("echo GNU Make 4.10.2", True),
        ("echo bmake", False),
        ("exit 1", False),
        (None, True),  # no make: others may use it
    ],
)
def test_flags_are_given_where_make_understands_them(
    tmp_path: Path, script: str | None, given: bool
) -> None:
    if script is not None:
        (tmp_path / "make").write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
        (tmp_path / "make").chmod(0o755)
    environ = {"PATH": str(tmp_path), "MAKEFLAGS": "k"}
    expected = {"MAKEFLAGS": "k --jobserver-auth=fifo:/g/jobs"} if given else {}
    assert jobserver.jobserver_environment(Path("/g/jobs"), environ) == expected


def test_the_make_of_this_machine_lives_with_our_flags(pool: TokenPool, tmp_path: Path) -> None:
    make = shutil.which("make")
    if make is None:
        pytest.skip("make is not installed")
    pool.offer(1)
    (tmp_path / "Makefile").write_text("all:\n\t@echo made\n", encoding="utf-8")
    environ = {"PATH": os.environ["PATH"]}
    environ |= jobserver.jobserver_environment(tmp_path / "jobs", environ)
    said = subprocess.run(
        [make], cwd=tmp_path, env=environ, check=True, capture_output=True, text=True
    )
    assert (said.stdout, said.stderr) == ("made\n", "")


def test_a_real_ninja_runs_one_job_more_than_there_are_tokens(
    pool: TokenPool, tmp_path: Path
) -> None:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    ninja = shutil.which("ninja", path=path)
    if ninja is None or tuple(_version(ninja)) < (1, 13):
        pytest.skip("ninja 1.13 or newer is not installed (it is in requirements-dev.txt)")
    # the first three wait for each other, so that they are seen together however slowly they start
    three = 'while [ "`grep -c + log`" -lt 3 ]; do sleep 0.01; done'
    job = f"echo + >> log; {three}; sleep 0.1; echo - >> log; touch $out"
    edges = "".join(f"build {number}: job\n" for number in range(6))
    (tmp_path / "build.ninja").write_text(f"rule job\n  command = {job}\n{edges}", encoding="utf-8")
    environ = {"PATH": os.environ["PATH"], "MAKEFLAGS": f"--jobserver-auth=fifo:{tmp_path}/jobs"}
    pool.offer(2)
    subprocess.run(
        [ninja, "-C", str(tmp_path)], env=environ, check=True, capture_output=True, timeout=60
    )
    running, most = 0, 0
    for line in (tmp_path / "log").read_text().split():
        running += 1 if line == "+" else -1
        most = max(most, running)
    assert most == 3
    assert (pool.held, lying(tmp_path)) == (0, 2)


def _version(ninja: str) -> Iterator[int]:
    said = subprocess.run([ninja, "--version"], check=True, capture_output=True, text=True).stdout
    return (int(part) for part in said.split(".")[:2])
