"""The command that starts the guard, and what the guard reads from the process that started it."""

import json
import os
from dataclasses import asdict, dataclass
from typing import Any

from torchmill.config.model import KnownUnit
from torchmill.core.files import parse_json

GATE = "TORCHMILL_GATE"  # names the folder of a build's guard to its gates, and marks its processes


@dataclass(frozen=True, slots=True)
class GuardCommand:
    """How one build is guarded."""

    folder: str  # that holds the socket, and the files of those that go on without the guard
    timeline: str  # the file that every record is written to
    history: str  # the file with what was learned of units
    roots: tuple[str, ...]  # folders below which a source is known by its path
    cores: int | None  # to keep busy; None: as many as the machine has, read again and again
    memory: int | None  # bytes that all units together may have; None: what the machine has left
    known: tuple[KnownUnit, ...] = ()

    def to_line(self) -> str:
        """Return the command as one line of JSON, without its end."""
        return json.dumps(asdict(self), separators=(",", ":"))


def parse_command(line: str) -> GuardCommand:
    """Return the command in a line. Raise ValueError where it holds none."""
    try:
        values: dict[str, Any] = parse_json(line)
        known = tuple(KnownUnit(**one) for one in values.pop("known"))
        return GuardCommand(**{**values, "roots": tuple(values["roots"]), "known": known})
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"no command for the guard: {error}") from None


class GuardStarter:
    """The process that started the guard, read at a descriptor."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._received = b""
        self._closed = False

    def fileno(self) -> int:
        """Return the descriptor, for a selector."""
        return self._descriptor

    @property
    def asked_to_end(self) -> bool:
        """Tell whether it has sent `end`."""
        return b"end\n" in self._received

    @property
    def gone(self) -> bool:
        """Tell whether it is gone without having sent `end`: it was killed."""
        return self._closed and not self.asked_to_end

    def read_first_line(self) -> str:
        """Wait for a line; "" where none comes."""
        while b"\n" not in self._received and not self._closed:
            self.read()
        line, _, self._received = self._received.partition(b"\n")
        return line.decode("utf-8")

    def read(self) -> None:
        """Read what it has sent; waits where that is nothing."""
        block = os.read(self._descriptor, 65536)
        self._received += block
        self._closed = not block
