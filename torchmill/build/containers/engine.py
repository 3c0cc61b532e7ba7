"""The container engine of this machine, and whether its kernel runs programs of another architecture."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from torchmill.core.errors import ConfigError, HostError

BINFMT_FOLDER = "proc/sys/fs/binfmt_misc"
_MACHINES = {"x86_64": 0x3E, "aarch64": 0xB7}  # e_machine in an ELF file
_QEMU = {"x86_64": "qemu-x86_64", "aarch64": "qemu-aarch64"}  # as Debian's update-binfmts calls them
_TONISTIIGI = {"x86_64": "amd64", "aarch64": "arm64"}  # as docker calls them
_PROGRAM, _LIBRARY = 2, 3  # e_type: a program is either, by whether it can lie anywhere in memory


@dataclass(frozen=True, slots=True)
class BinfmtHandler:
    """An entry of binfmt_misc: what runs the files that begin in a certain way."""

    name: str
    interpreter: str
    flags: str  # "F": the interpreter was opened when it was registered, so that containers need not have it
    enabled: bool
    magic: bytes
    mask: bytes

    def takes(self, header: bytes) -> bool:
        """Tell whether a file with this header is run by it."""
        meant = zip(header, self.magic, self.mask, strict=False)
        return len(self.magic) <= len(header) and all(one & mask == two & mask for one, two, mask in meant)


def read_binfmt_entries(root: Path = Path("/")) -> dict[str, str]:
    """Return what the kernel says of each entry, by name; none where binfmt_misc is not mounted."""
    found = {}
    with contextlib.suppress(OSError):
        for path in sorted((root / BINFMT_FOLDER).iterdir()):
            if path.name not in {"register", "status"}:
                found[path.name] = path.read_text(encoding="utf-8", errors="replace")
    return found


def find_handler(arch: str, said: Mapping[str, str]) -> BinfmtHandler | None:
    """Return the enabled entry that runs programs of an arch; None where there is none."""
    known = (_handler(name, text) for name, text in said.items())
    able = [one for one in known if one and one.enabled and all(map(one.takes, _headers(arch)))]
    return max(able, key=lambda one: "F" in one.flags, default=None)


def explain_no_emulation(arch: str, said: Mapping[str, str]) -> str | None:
    """Return why no container can run programs of an arch here, with the cure; None where one can."""
    found = find_handler(arch, said)
    if found is None:
        return (
            f"the kernel of this machine does not run programs for {arch}: register QEMU with it, by "
            f"`docker run --privileged --rm tonistiigi/binfmt --install {_TONISTIIGI[arch]}`, or on Debian "
            "and Ubuntu `apt-get install qemu-user-static binfmt-support` (where /proc/sys/fs/binfmt_misc is "
            "empty, with `mount -t binfmt_misc none /proc/sys/fs/binfmt_misc` and "
            f"`update-binfmts --enable {_QEMU[arch]}` after it)"
        )
    if "F" not in found.flags:
        return (
            f"programs for {arch} are run by {found.interpreter}, which a container does not see: register "
            "one that is opened beforehand (flag F), as Debian's qemu-user-static does, or "
            f"`docker run --privileged --rm tonistiigi/binfmt --install {_TONISTIIGI[arch]}`"
        )
    return None


def _headers(arch: str) -> list[bytes]:
    """Return how the programs of an arch begin: 64 bits, little-endian."""
    start = b"\x7fELF\x02\x01\x01" + bytes(9)
    machine = _MACHINES[arch].to_bytes(2, "little")
    return [start + kind.to_bytes(2, "little") + machine for kind in (_PROGRAM, _LIBRARY)]


def _handler(name: str, text: str) -> BinfmtHandler | None:
    """Return an entry as the kernel describes it; None where that is not by how a file begins."""
    lines = text.splitlines()
    said = {key.rstrip(":"): value for key, _, value in (line.partition(" ") for line in lines)}
    try:
        magic = bytes.fromhex(said["magic"])
        mask = bytes.fromhex(said["mask"]) if "mask" in said else b"\xff" * len(magic)
        offset = int(said.get("offset", "0"))
        interpreter = said["interpreter"]
    except (KeyError, ValueError):
        return None
    enabled = lines[0] == "enabled" and offset == 0
    return BinfmtHandler(name, interpreter, said.get("flags", ""), enabled, magic, mask)


ANSWER_TIMEOUT_SECONDS = (
    60.0  # seconds that an engine gets to say its version: the daemon may be on another machine
)

# In order of preference. What each is asked shows that it can work, and not only that its client is there.
QUESTIONS: Mapping[str, tuple[str, ...]] = {
    "docker": ("version", "--format", "{{.Server.Version}}"),
    "podman": ("info", "--format", "{{.Version.Version}}"),
    "buildah": ("info", "--format", "{{.store.GraphDriverName}}"),
}
INSTALL = (
    "Debian and Ubuntu: `apt-get install podman` or `buildah`; Fedora: `dnf install podman`; "
    "macOS: Docker Desktop, or `brew install podman` and `podman machine init --now`"
)
# Where the kernel has no overlay for it (in a container without privileges), whole copies still work.
COPIES = ("--storage-driver", "vfs")


@dataclass(frozen=True, slots=True)
class Engine:
    """A container engine that answers."""

    name: str  # "docker", "podman", "buildah"
    program: str  # its path
    options: tuple[str, ...]  # that stand before every verb: ("--storage-driver", "vfs")
    version: str  # of the program; of the daemon, where it has one

    def command(self, verb: str, *words: str) -> tuple[str, ...]:
        """Return the command line of a verb ("build", "run") with its words."""
        return (self.program, *self.options, verb, *words)


@dataclass(frozen=True, slots=True)
class SilentEngine:
    """A container engine that is installed and does not answer."""

    name: str
    said: str  # its last words


def find_engine(environ: Mapping[str, str], asked: str = "") -> Engine:
    """Return the engine that was asked for by name, or the first of the three that answers.

    `environ` is the environment whose PATH is searched and in which the engine runs.
    Raises ConfigError for a name that is none of the three, HostError where none of them answers.
    """
    if asked and asked not in QUESTIONS:
        raise ConfigError(
            f"unknown container engine '{asked}': choose from {', '.join(QUESTIONS)}",
            code="unknown-container-engine",
        )
    names = (asked,) if asked else tuple(QUESTIONS)
    silent: list[SilentEngine] = []
    for name in names:
        found = _ask(environ, name)
        if isinstance(found, Engine):
            return found
        if found is not None:
            silent.append(found)
    raise HostError(_refusal(names, silent), code="no-container-engine")


def _ask(environ: Mapping[str, str], name: str) -> Engine | SilentEngine | None:
    """Return the engine of a name; None where it is not installed."""
    program = shutil.which(name, path=environ.get("PATH", ""))
    if program is None:
        return None
    said = ""
    for options in _ways(name, environ):
        try:
            answer = _output(environ, (program, *options, *QUESTIONS[name]))
            version = _version(environ, program) if name == "buildah" else answer
        except subprocess.SubprocessError as error:
            said = said or _last_words(error)
        except OSError as error:
            said = said or error.strerror or str(error)
        else:
            return Engine(name, program, options, version)
    return SilentEngine(name, said)


def _ways(name: str, environ: Mapping[str, str]) -> Iterator[tuple[str, ...]]:
    """Yield the options with which an engine is asked, until it answers."""
    said = environ.get("STORAGE_DRIVER", "")
    if name != "docker" and said:
        yield ("--storage-driver", said)  # buildah 1.28 does not read the variable itself
        return
    yield ()
    if name != "docker":
        yield COPIES


def _version(environ: Mapping[str, str], program: str) -> str:
    """Return buildah's version of "buildah version 1.28.2 (image-spec …)"."""
    words = _output(environ, (program, "--version")).split()
    return words[2] if len(words) > 2 else "unknown"  # noqa: PLR2004 - the third word


def _output(environ: Mapping[str, str], argv: tuple[str, ...]) -> str:
    done = subprocess.run(
        argv,
        env=dict(environ),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        timeout=ANSWER_TIMEOUT_SECONDS,
        check=True,
    )
    return done.stdout.strip()


def _last_words(error: subprocess.SubprocessError) -> str:
    if isinstance(error, subprocess.CalledProcessError):
        lines = [line.strip() for line in f"{error.stdout}\n{error.stderr}".splitlines() if line.strip()]
        return lines[-1] if lines else f"it ended with exit code {error.returncode}"
    return f"no answer in {ANSWER_TIMEOUT_SECONDS:.0f} s"


def _refusal(names: tuple[str, ...], silent: list[SilentEngine]) -> str:
    """Say in one sentence why there is no engine, and what to do."""
    if not silent:
        missing = names[0] if len(names) == 1 else "none of docker, podman and buildah"
        verb = "is not" if len(names) == 1 else "is"
        return f"{missing} {verb} on PATH: install a container engine ({INSTALL})"
    told = "; ".join(f"{one.name} is installed but does not answer ({one.said})" for one in silent)
    cure = "start its daemon" if silent[0].name == "docker" else f"make `{silent[0].name} info` work"
    others = "" if len(names) == 1 else f", or install one that needs no daemon ({INSTALL})"
    return f"{told}: {cure}{others}"
