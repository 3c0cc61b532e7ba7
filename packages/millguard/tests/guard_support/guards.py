"""A guard's process to test against, and gates that say what a test wants them to."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import millguard
import psutil
from millguard.server import READY, GuardCommand
from millguard.timeline import (
    Record,
    TimelineEvent,
    TimelineMoment,
    UnitRun,
    parse_record,
)

IMPORTS = Path(millguard.__file__).parents[1]
MIB = 2**20
SOON = 30.0  # seconds for what takes a moment: generous, for machines with other things to do


def until(condition: Callable[[], object], what: str = "it", seconds: float = SOON) -> None:
    """Wait for a condition."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"{what} did not happen"
        time.sleep(0.01)


def orders(folder: Path, cores: int | None = 2, memory: int | None = None) -> GuardCommand:
    """Return orders for a guard that keeps everything in a folder."""
    return GuardCommand(
        folder=str(folder),
        timeline=str(folder / "timeline.jsonl"),
        history=str(folder / "units.sqlite"),
        roots=(str(folder),),
        cores=cores,
        memory=memory,
    )


class Guard:
    """A real guard's process, and what it said so far."""

    def __init__(self, ordered: GuardCommand, before: Sequence[str] = ()) -> None:
        self.folder = Path(ordered.folder)
        self.records: list[Record] = []
        self.process = subprocess.Popen(
            [*before, sys.executable, "-m", "millguard.service"],
            env={**os.environ, "PYTHONPATH": str(IMPORTS)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            text=True,
        )
        self._listener = threading.Thread(target=self._listen)
        self._ready = threading.Event()
        self._ordered = ordered

    def __enter__(self) -> Self:
        self.say(self._ordered.to_line())
        self._listener.start()
        assert self._ready.wait(SOON)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with contextlib.suppress(OSError):
            self.say("end")
        try:
            self.process.wait(SOON)
        finally:
            self.process.kill()
            self._listener.join()
            for pipe in (self.process.stdin, self.process.stdout):
                assert pipe
                with contextlib.suppress(OSError):
                    pipe.close()

    def say(self, line: str) -> None:
        """Give it an order."""
        assert self.process.stdin
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def gate(self, name: str = "a.c") -> Gate:
        """Return a gate that asks for a compile."""
        gate = Gate(self.folder)
        gate.ask("cc", "-c", name)
        return gate

    def events(self, kind: str) -> list[TimelineEvent]:
        """Return the events of a kind."""
        return [
            one for one in list(self.records) if isinstance(one, TimelineEvent) and one.kind == kind
        ]

    def runs(self) -> list[str]:
        """Return how each run ended."""
        return [one.outcome for one in list(self.records) if isinstance(one, UnitRun)]

    def waiting(self) -> int:
        """Return how many units waited when it looked last."""
        return next(
            (one.waiting for one in reversed(self.records) if isinstance(one, TimelineMoment)), 0
        )

    def _listen(self) -> None:
        assert self.process.stdout
        for line in self.process.stdout:
            if line == READY:
                self._ready.set()
            else:
                self.records.append(parse_record(line))


class Gate:
    """The guard's client, in the hands of a test."""

    def __init__(self, folder: Path) -> None:
        self.compiler: subprocess.Popen[bytes] | None = None
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(SOON)
        with contextlib.chdir(folder):
            self.socket.connect("s")
        self._heard = b""

    def ask(self, *argv: str) -> None:
        """Ask for a compiler to start."""
        words = b"".join(word.encode() + b"\0" for word in ("/src", *argv))
        self.socket.sendall(b"ask %d\n%b" % (len(words), words))

    def hear(self) -> str:
        """Wait for a word; "" where the guard has closed the connection."""
        while b"\n" not in self._heard:
            block = self.socket.recv(100)
            if not block:
                return ""
            self._heard += block
        word, _, self._heard = self._heard.partition(b"\n")
        return word.decode()

    def silent(self) -> bool:
        """Tell whether the guard has said nothing so far."""
        self.socket.setblocking(False)
        try:
            self._heard += self.socket.recv(100)
        except BlockingIOError:
            return not self._heard
        finally:
            self.socket.settimeout(SOON)
        return False

    def start(self, *argv: str) -> None:
        """Start a program as its compiler, in a group of its own."""
        self.compiler = subprocess.Popen(
            argv, start_new_session=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self.socket.sendall(b"pid %d\n" % self.compiler.pid)

    def end(self, code: int = 0, peak: int = 0, *, killed: bool = False) -> None:
        """Say how it ended."""
        self.socket.sendall(b"end %d %d %d\n" % (code, peak, killed))

    def status(self) -> str:
        """Return what the kernel says of its compiler: "T" is stopped."""
        assert self.compiler
        return psutil.Process(self.compiler.pid).status()

    def close(self) -> None:
        """Leave, and leave no compiler behind."""
        self.socket.close()
        if self.compiler is not None:
            self.compiler.kill()
            self.compiler.communicate()
