"""Both gates, the compiled one and the script, and a guard that says what a test wants it to."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from millguard.gate_protocol import listen

SOON = 30.0  # seconds for what takes a moment: generous, for machines with other things to do
OURS = ("MILLGUARD_GATE", "MILLGUARD_GATED")


class Heard:
    """What one gate says to its guard, line by line."""

    def __init__(self, connection: socket.socket) -> None:
        connection.settimeout(SOON)
        self._connection = connection
        self._file = connection.makefile("rb")

    def line(self) -> str:
        """Return the next line; an empty one where the gate has left."""
        return self._file.readline().decode().strip()

    def asked(self) -> list[str]:
        """Return the folder and the command that it asks for."""
        word, length = self.line().split()
        assert word == "ask"
        return self._file.read(int(length)).decode().split("\0")[:-1]

    def group(self) -> int:
        """Return the process group of the compiler that it has started."""
        word, number = self.line().split()
        assert word == "pid"
        return int(number)

    def ended(self) -> tuple[int, int, int]:
        """Return the code, the peak in bytes, and 1 where memory was short."""
        word, *numbers = self.line().split()
        assert word == "end"
        code, peak, killed = map(int, numbers)
        return code, peak, killed

    def say(self, word: str) -> None:
        """Tell the gate something."""
        self._connection.sendall(f"{word}\n".encode())

    def close(self) -> None:
        """End the connection as a guard that dies does."""
        self._file.close()
        self._connection.close()


class Meeting:
    """A folder in which gates look for a guard."""

    def __init__(self, folder: Path, slots: int = 0) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        for number in range(1, slots + 1):
            (folder / str(number)).touch()
        self.folder = folder
        self._socket: socket.socket | None = None
        self._heard: list[Heard] = []

    def __enter__(self) -> Self:
        """Be a guard that answers."""
        self._socket = listen(self.folder)
        self._socket.settimeout(SOON)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Be gone."""
        assert self._socket
        self._socket.close()
        for heard in self._heard:
            heard.close()

    def met(self) -> Heard:
        """Wait for the next gate."""
        assert self._socket
        self._heard.append(Heard(self._socket.accept()[0]))
        return self._heard[-1]

    def start(
        self, *command: str | Path, cwd: Path | None = None, env: Mapping[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        """Start a command whose gates come here."""
        return subprocess.Popen(
            [str(word) for word in command],
            cwd=cwd,
            env=environment() | {"MILLGUARD_GATE": str(self.folder)} | dict(env or {}),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            # nohup has it ignored; no test has threads of its own here
            preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),  # noqa: PLW1509
        )


def environment() -> dict[str, str]:
    """Return a build's environment in which no gate is named."""
    return {name: value for name, value in os.environ.items() if name not in OURS}


def result(process: subprocess.Popen[bytes]) -> tuple[int, bytes, bytes]:
    """Return the code of a process that ends soon, its stdout and its stderr."""
    out, err = process.communicate(timeout=SOON)
    return process.returncode, out, err
