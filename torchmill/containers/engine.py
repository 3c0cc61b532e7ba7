"""The container engine of this machine: docker, podman or buildah, whichever is there and answers."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from torchmill.errors import ConfigError, HostError

PATIENCE = 60.0  # seconds that an engine gets to say its version: the daemon may be on another machine

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
class Silent:
    """A container engine that is installed and does not answer."""

    name: str
    said: str  # its last words


def find(environ: Mapping[str, str], asked: str = "") -> Engine:
    """Return the engine that was asked for by name, or the first of the three that answers.

    `environ` is the environment whose PATH is searched and in which the engine runs.
    Raises ConfigError for a name that is none of the three, HostError where none of them answers.
    """
    if asked and asked not in QUESTIONS:
        raise ConfigError(f"container engine '{asked}' is unknown; there is {', '.join(QUESTIONS)}")
    names = (asked,) if asked else tuple(QUESTIONS)
    silent: list[Silent] = []
    for name in names:
        found = _ask(environ, name)
        if isinstance(found, Engine):
            return found
        if found is not None:
            silent.append(found)
    raise HostError(_refusal(names, silent))


def _ask(environ: Mapping[str, str], name: str) -> Engine | Silent | None:
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
    return Silent(name, said)


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
        timeout=PATIENCE,
        check=True,
    )
    return done.stdout.strip()


def _last_words(error: subprocess.SubprocessError) -> str:
    if isinstance(error, subprocess.CalledProcessError):
        lines = [line.strip() for line in f"{error.stdout}\n{error.stderr}".splitlines() if line.strip()]
        return lines[-1] if lines else f"it ended with exit code {error.returncode}"
    return f"no answer in {PATIENCE:.0f} s"


def _refusal(names: tuple[str, ...], silent: list[Silent]) -> str:
    """Say in one sentence why there is no engine, and what to do."""
    if not silent:
        missing = names[0] if len(names) == 1 else "none of docker, podman and buildah"
        verb = "is not" if len(names) == 1 else "is"
        return f"{missing} {verb} on PATH: install a container engine ({INSTALL})"
    told = "; ".join(f"{one.name} is installed but does not answer ({one.said})" for one in silent)
    cure = "start its daemon" if silent[0].name == "docker" else f"make `{silent[0].name} info` work"
    others = "" if len(names) == 1 else f", or install one that needs no daemon ({INSTALL})"
    return f"{told}: {cure}{others}"
