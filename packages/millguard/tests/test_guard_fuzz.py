"""The guard's process against gates that send anything: random bytes, and messages with errors."""

import contextlib
import random
import socket
from collections.abc import Iterator
from pathlib import Path

import psutil
from guard_support.guards import MIB, Gate, Guard, orders, until

SEED = 20261130
CONNECTIONS = 60
FRAMES_EACH = 10
WORDS = (b"ask", b"pid", b"end", b"go", b"", b"\xff\xfe", b"-1", b"0", b"1", b"9" * 40, b"1e9")
ARGUMENTS = (
    b"/src",
    b"cc",
    b"../..//g++-12-1-1-1",
    b"-c",
    b"-x",
    b"a\n\x1b[2J.cpp",
    b"@/dev/zero",
    b"@/proc/self/mem",
    b"--options-file",
    b"-t9999999999999999999",
    b"--threads=all",
    b"\xff\xed\xa0\x80",
    b"",
)


def frames(seed: int) -> Iterator[bytes]:
    """Yield messages: some as the protocol has them, some changed at one place, some random."""
    draw = random.Random(seed)  # noqa: S311 - a test that can be repeated
    while True:
        words = b"".join(draw.choice(ARGUMENTS) + b"\0" for _ in range(draw.randrange(12)))
        length = len(words) if draw.random() < 0.8 else draw.choice((-1, 0, 2**20, 2**70))
        message = draw.choice(
            (
                b"ask %d\n%b" % (length, words),
                b"pid %d\n" % draw.choice((0, 1, 2, 2**22 + 7, 2**31, -5, 2**80)),
                b"end %d %d %d\n" % (draw.randrange(300), draw.choice((-1, 0, 2**64)), 1),
                b" ".join(draw.choice(WORDS) for _ in range(draw.randrange(5))) + b"\n",
                draw.randbytes(draw.randrange(300)),
            )
        )
        if draw.random() < 0.3 and message:
            position = draw.randrange(len(message))
            message = message[:position] + draw.randbytes(1) + message[position + 1 :]
        yield message


def attack(guard: Guard, connections: int, seed: int = SEED) -> None:
    """Send FRAMES_EACH messages by each of some connections, as far as the guard takes them."""
    messages = frames(seed)
    for _ in range(connections):
        gate = Gate(guard.folder)
        with contextlib.suppress(OSError):  # the guard has ended the connection
            for _ in range(FRAMES_EACH):
                gate.socket.send(next(messages), socket.MSG_DONTWAIT)
        gate.close()


def test_no_message_ends_the_guard_or_makes_it_grow(tmp_path: Path) -> None:
    with Guard(orders(tmp_path)) as guard:
        process = psutil.Process(guard.process.pid)
        attack(guard, CONNECTIONS // 2)
        until(lambda: len(process.net_connections("unix")) <= 1, "the end of the connections")
        resident = process.memory_info().rss
        attack(guard, CONNECTIONS // 2)
        gate = guard.gate()
        assert gate.hear() == "go"
        gate.end()
        gate.close()
        assert process.memory_info().rss - resident < 4 * MIB
