"""Run a command under strace, and tell which programs it started and which paths it changed."""

import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_CALLS = (
    "execve,open,openat,creat,rename,renameat,renameat2,link,linkat,symlink,symlinkat,unlink,unlinkat,"
    "mkdir,mkdirat,rmdir,mknod,mknodat,chmod,fchmodat,chown,lchown,fchownat,truncate,utimensat"
)
_FINISHED_CALL = re.compile(
    r"^(?P<pid>\d+)\s+(?P<name>\w+)\((?P<arguments>.*)\)\s+=\s+(?P<result>\d+)(?:<(?P<opened>[^>]*)>)?"
)
_BEGUN_CALL = re.compile(r"^(?P<begin>\d+\s+\w+\(.*) <unfinished \.\.\.>$")
_RESUMED_CALL = re.compile(r"^(?P<pid>\d+)\s+<\.\.\. (?P<name>\w+) resumed>(?P<rest>.*)$")
# A folder that the call names (`AT_FDCWD</home>`, `7</home/x>`), if there is one, and a quoted path.
_PATH = re.compile(r'(?:(?:AT_FDCWD|\d+)<(?P<folder>[^>]*)>, )?"(?P<path>(?:[^"\\]|\\.)*)"')
_WRITING_FLAGS = re.compile(r"O_(?:WRONLY|RDWR|CREAT|TRUNC)")
_CALLS_WITHOUT_FOLDER = frozenset(
    {"rename", "link", "symlink", "unlink", "mkdir", "rmdir", "mknod", "chmod", "chown", "lchown", "truncate", "creat"}
)  # fmt: skip


@dataclass(frozen=True)
class Watch:
    """What a command and all that it started did."""

    done: subprocess.CompletedProcess[str]
    executed: frozenset[Path]  # programs, without following links in their last part
    changed: frozenset[
        Path
    ]  # what was opened for writing, made, renamed, linked, removed, or got another mode


def watch(argv: Sequence[str], folder: Path, env: Mapping[str, str], trace: Path) -> Watch:
    """Run a command in `folder` to its end, with no input; `trace` is where strace writes. Raises FileNotFoundError."""
    done = subprocess.run(
        ["strace", "-f", "--seccomp-bpf", "-y", "-qq", "-s", "4096", f"--trace={_CALLS}", f"--output={trace}", *argv],
        cwd=folder,
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip
    executed, changed = read_trace(trace.read_text("utf-8", "replace"), folder)
    return Watch(done, executed, changed)


def read_trace(text: str, folder: Path) -> tuple[frozenset[Path], frozenset[Path]]:
    """Return the programs that were executed and the paths that were changed, by successful calls."""
    executed, changed = set[Path](), set[Path]()
    begun: dict[tuple[str, str], str] = {}  # the first half of a call, by process and name
    for line in text.splitlines():
        if unfinished := _BEGUN_CALL.match(line):
            pid, _, rest = line.partition(" ")
            begun[pid, rest.strip().partition("(")[0]] = unfinished["begin"]
            continue
        whole = line
        if resumed := _RESUMED_CALL.match(line):
            whole = begun.pop((resumed["pid"], resumed["name"]), "") + resumed["rest"]
        if call := _FINISHED_CALL.match(whole):
            paths = _paths_of(call, folder)
            (executed if call["name"] == "execve" else changed).update(paths)
    return frozenset(executed), frozenset(changed)


def _paths_of(call: re.Match[str], folder: Path) -> list[Path]:
    """Return the absolute paths that a call executes or changes; none if it only reads."""
    name, arguments = call["name"], call["arguments"]
    if name in {"open", "openat", "creat"}:
        writes = name == "creat" or _WRITING_FLAGS.search(arguments)
        # strace tells where an opened file really lies; without that, the path as it was given.
        if writes and call["opened"]:
            return [Path(call["opened"])]
        if not writes:
            return []
    if name == "execve":
        arguments = arguments.partition(", [")[0]
    places = [_place(found, folder) for found in _PATH.finditer(arguments)]
    # The first path of a symbolic link is the text that it holds.
    return places[1:] if name.startswith("symlink") else places


def _place(found: re.Match[str], folder: Path) -> Path:
    """Return a path without links in its folders; its last part may be a link, which calls do not follow."""
    path = Path(
        found["folder"] or folder,
        os.fsdecode(found["path"].encode().decode("unicode_escape").encode("latin-1")),
    )
    return Path(os.path.realpath(path.parent), path.name)
