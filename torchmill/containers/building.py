"""Let an engine build an image of a folder with a Dockerfile."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from torchmill.containers.engine import Engine
from torchmill.containers.running import PLATFORMS
from torchmill.diagnosis import causes
from torchmill.errors import BuildError, HostError
from torchmill.model import Cause
from torchmill.process import CommandError, capture, stream

WIDTH = 100  # characters of a step that are shown: a RUN has hundreds
STEP = re.compile(r"(?:(?:\[\d+/\d+\] )?STEP \d+/\d+: |Step \d+/\d+ : |#\d+ \[.*\d+/\d+\] )\w.*")
# What an engine says of a step that failed, below what the step itself said.
WRAPPING = re.compile(
    r"(?:#\d+ )?(?:subprocess exited|exit status|Error: building at STEP|ERROR: (?:failed to solve|process )"
    r"|The command .* returned a non-zero code|-+$|> \[|(?:>+ )?\d* ?\|).*"
)
# What a step of ours says when it refuses an image; BuildKit writes the step's number and the time before it.
REFUSAL = re.compile(r"(?:#\d+ )?(?:[\d.]+ )?torchmill: (?P<why>.+)")


@dataclass(frozen=True, slots=True)
class Built:
    """An image that an engine made."""

    tag: str
    size: str  # as the engine says it: "812 MB"


@dataclass(frozen=True, slots=True)
class Job:
    """An image to build."""

    engine: Engine
    folder: Path  # with its Dockerfile, and what that copies
    tag: str
    arch: str
    native: str  # the arch that needs no emulation here

    @property
    def command(self) -> tuple[str, ...]:
        """Return the command that builds it."""
        # chroot asks nothing of the kernel that a container without privileges does not have
        isolation = ("--isolation", "chroot") if self.engine.name == "buildah" else ()
        platform = () if self.arch == self.native else ("--platform", PLATFORMS[self.arch])
        place = ("--tag", self.tag, "--file", str(self.folder / "Dockerfile"), str(self.folder))
        return self.engine.command("build", *isolation, *platform, *place)


def build(
    job: Job,
    log: Path,
    environ: Mapping[str, str],
    say: Callable[[str], None],
    catalogue: Sequence[Cause] = (),
) -> Built:
    """Build an image, saying each step. What the engine prints goes to the file `log`.

    A failure that the catalogue knows is told with its cure.
    Raises HostError where a step refused the base image, BuildError where anything else failed.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w", encoding="utf-8") as file:
        try:
            stream(job.command, cwd=None, env=environ, log=file, on_line=lambda line: _tell(line, say))
        except CommandError as error:
            lines = [line.strip() for line in error.output.splitlines() if line.strip()]
            refusals = [match["why"] for line in lines if (match := REFUSAL.fullmatch(line))]
            if refusals:
                raise HostError(f"{job.tag} was not built: {refusals[-1]}") from None
            silent = f"{job.engine.name} ended with exit code {error.returncode}"
            why = _why(lines, catalogue) or silent
            raise BuildError(f"{job.tag} was not built: {why}; all of it is in {log}") from None
    listed = capture(job.engine.command("images", "--format", "{{.Size}}", job.tag), env=environ)
    return Built(job.tag, listed.strip().partition("\n")[0])


def _why(lines: Sequence[str], catalogue: Sequence[Cause]) -> str:
    """Return what went wrong, and what cures it where the catalogue knows that; "" where nothing was said."""
    told = causes.diagnose(catalogue, lines).told
    if told is not None:
        return f"{told.cause.cause}: {told.cause.cure} (in an image, of the image that --base names)"
    own = [line for line in lines if not WRAPPING.fullmatch(line)]
    return next(reversed(own or lines), "")


def _tell(line: str, say: Callable[[str], None]) -> None:
    if STEP.fullmatch(line):
        say(line if len(line) <= WIDTH else f"{line[:WIDTH]}…")
