"""What a terminal shows of commands, at 80 and at 120 columns, with colour and without: golden files by pyte."""

import fcntl
import os
import pty
import shutil
import struct
import sys
import tempfile
import termios
from collections.abc import Iterator
from pathlib import Path

import pyte
import pytest

from tests.support import documented_wheels
from tests.support.commands import ROOT, environment
from torchmill.host.native import native_arch

GOLDEN = ROOT / "tests" / "golden" / "screens"
HOSTS = ROOT / "tests" / "golden" / "hosts"
ROWS = 120
DEBIAN, RTX3090 = (f"--host={HOSTS / name}.toml" for name in ("debian-12", "rtx3090"))
CUDA = ("wheel-3.12-cu121", "--tag=v2.4.1")
COMMANDS = {
    "matrix": ["invoke", "matrix", "--tag=v2.4.1", "--arch=x86_64"],
    "matrix-package": ["invoke", "matrix", "--package=flash-attn", "--arch=x86_64"],
    "plan": ["invoke", "plan", *CUDA, RTX3090],
    "doctor": ["invoke", "doctor", "wheel-3.10-cu117", "--tag=v1.13.1", DEBIAN],
    "explain": ["invoke", "explain", "wheel-3.12-cpu", "--tag=v2.4.1", DEBIAN],
    "explain-impossible": ["invoke", "explain", "wheel-3.14-cu121", "--tag=v2.4.1", DEBIAN],
    "jobs": ["invoke", "jobs", *CUDA, RTX3090, "--memory=48 GiB"],
    "shards": ["invoke", "shards", *CUDA, RTX3090],
    "arch": ["invoke", "arch", "--local", "--cuda=12.1", "--tag=v2.4.1", RTX3090],
    "arch-list": ["invoke", "arch"],
    "toolkit": ["invoke", "toolkit"],
    "index": ["invoke", "index"],
    "publish": ["invoke", "publish", "--to=published", "--dry-run"],
    "build-help": ["invoke", "build", "--help"],
    "nox-list": ["nox", "-l"],
    "nox": ["nox"],
}
NARROW = {"matrix", "matrix-package", "nox", "nox-list", "publish"}  # whatever the width
SAMPLE = {"TORCHMILL_CONFIGS": str(ROOT / "sample" / "build_configs")}


@pytest.fixture
def home() -> Iterator[Path]:
    """Return a folder with two wheels, whose name is always as long: where lines are folded depends on it."""
    folder = Path(tempfile.mkdtemp(prefix="torchmill-", dir="/tmp"))
    for variant in ("cpu", "cu117"):
        documented_wheels.built(folder / "dist", f"1.13.1+{variant}")
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the user's cache, in which the facts are, once they were read."""
    return str(tmp_path_factory.mktemp("cache"))


def shown(words: list[str], columns: int, home: Path, **variables: str) -> pyte.Screen:
    """Return the screen of a terminal of some width after a command."""
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(ROOT)
        env = {
            name: value for name, value in environment(home).items() if name != "NO_COLOR"
        } | variables
        argv = [sys.executable, "-m", *words]
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


@pytest.mark.parametrize(
    ("name", "columns"),
    [
        (name, columns)
        for name in COMMANDS
        for columns in (80, 120)
        if columns == 80 or name not in NARROW
    ],
)
def test_screens_are_as_they_were(
    name: str, columns: int, home: Path, cache: str, request: pytest.FixtureRequest
) -> None:
    if name == "toolkit" and native_arch() != "x86_64":
        pytest.skip("providers have something else for other machines")
    screen = shown(
        COMMANDS[name],
        columns,
        home,
        XDG_CACHE_HOME=cache,
        **(SAMPLE if name == "nox-list" else {}),
    )
    text = "\n".join(line.rstrip() for line in screen.display).rstrip() + "\n"
    text = text.replace(str(home), f"{home.parent}/torchmill-12345678").replace(
        str(ROOT), "/torchmill"
    )
    if name == "toolkit":  # what is installed here stands above what can be had
        text = text[text.index("available ") :]
    file = GOLDEN / f"{name}-{columns}.txt"
    if request.config.getoption("--update-golden"):
        file.write_text(text, encoding="utf-8")
    assert text == file.read_text(encoding="utf-8"), "pytest --update-golden writes it anew"


def test_verdicts_have_colours_where_they_are_wanted(tmp_path: Path) -> None:
    def colours(**variables: str) -> set[str]:
        screen = shown(COMMANDS["doctor"], 120, tmp_path, **variables)
        return {cell.fg for row in screen.buffer.values() for cell in row.values()}

    assert colours() == {"default", "green", "brown", "red"}  # ok, warnings, failures
    assert colours(NO_COLOR="1") == {"default"}


def test_marks_of_the_matrix_have_colours_where_they_are_wanted(tmp_path: Path) -> None:
    def colours(**variables: str) -> dict[str, set[str]]:
        screen = shown(COMMANDS["matrix"], 80, tmp_path, **variables)
        colours_of_words: dict[str, set[str]] = {}
        for number, line in enumerate(screen.display):
            for word, start in ((line[column : column + 5].strip(), column) for column in (10, 16)):
                if line.startswith("  cu1") and word:
                    colours_of_words.setdefault(word, set()).add(screen.buffer[number][start].fg)
        return colours_of_words

    assert colours() == {"wheel": {"green"}, "?": {"brown"}}
    assert colours(NO_COLOR="1") == {"wheel": {"default"}, "?": {"default"}}
