"""What a terminal shows of commands, at 80 and at 120 columns, with colour and without: golden files by pyte."""

import fcntl
import os
import pty
import struct
import sys
import termios
from pathlib import Path

import pyte
import pytest

from tests.support.commands import ROOT, environment

GOLDEN = ROOT / "tests" / "golden" / "screens"
HOSTS = ROOT / "tests" / "golden" / "hosts"
ROWS = 120
COMMANDS = {
    "matrix": ["matrix", "--tag=v2.4.1", "--arch=x86_64"],
    "plan": ["plan", "wheel-3.12-cu121", "--tag=v2.4.1", f"--host={HOSTS / 'rtx3090.toml'}"],
    "doctor": ["doctor", "wheel-3.10-cpu", "--tag=v1.13.1", f"--host={HOSTS / 'debian-12.toml'}"],
    "explain": ["explain", "wheel-3.12-cpu", "--tag=v2.4.1", f"--host={HOSTS / 'debian-12.toml'}"],
    "build-help": ["build", "--help"],
}


def shown(words: list[str], columns: int, home: Path, **variables: str) -> pyte.Screen:
    """Return the screen of a terminal of some width after a command."""
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(ROOT)
        env = {name: value for name, value in environment(home, variables).items() if name != "NO_COLOR" or variables}
        argv = [sys.executable, "-m", "invoke", *words]
        os.execve(sys.executable, argv, {**env, "TERM": "xterm", "COLUMNS": str(columns)})  # noqa: S606 - our own
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, columns, 0, 0))
    screen = pyte.Screen(columns, ROWS)
    stream = pyte.ByteStream(screen)
    while True:
        try:
            chunk = os.read(terminal, 65536)
        except OSError:  # the command has ended
            break
        if not chunk:
            break
        stream.feed(chunk)
    os.close(terminal)
    os.waitpid(child, 0)
    return screen


@pytest.mark.parametrize("columns", [80, 120])
@pytest.mark.parametrize("name", COMMANDS)
def test_screens_are_as_they_were(name: str, columns: int, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    screen = shown(COMMANDS[name], columns, tmp_path)
    text = "\n".join(line.rstrip() for line in screen.display).rstrip() + "\n"
    file = GOLDEN / f"{name}-{columns}.txt"
    if request.config.getoption("--update-golden"):
        file.write_text(text, encoding="utf-8")
    assert text == file.read_text(encoding="utf-8"), "pytest --update-golden writes it anew"


def test_verdicts_have_colours_where_they_are_wanted(tmp_path: Path) -> None:
    def colours(**variables: str) -> set[str]:
        screen = shown(COMMANDS["doctor"], 120, tmp_path, **variables)
        return {cell.fg for row in screen.buffer.values() for cell in row.values()}

    assert colours() == {"default", "green", "brown"}  # ok and warnings
    assert colours(NO_COLOR="1") == {"default"}
