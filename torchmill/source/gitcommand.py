"""How git is run: its environment, and what its complaints mean."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path

from torchmill import process
from torchmill.errors import SourceError, SuiteError
from torchmill.process import CommandError
from torchmill.source.disk import disk_full
from torchmill.source.mirror import PROTOCOLS, host_of, shown
from torchmill.source.network import unreachable
from torchmill.source.request import Request

# What a git hook, or an outer git, would impose on ours.
_FOREIGN = (
    "GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY", "GIT_COMMON_DIR", "GIT_NAMESPACE",
    "GIT_ALTERNATE_OBJECT_DIRECTORIES", "GIT_PREFIX", "GIT_SHALLOW_FILE", "GIT_CONFIG_PARAMETERS", "LANGUAGE",
)  # fmt: skip
_SETTINGS = (
    ("protocol.allow", "never"),
    *((f"protocol.{name}.allow", "always") for name in PROTOCOLS),
    ("protocol.version", "2"),  # only 2 serves commits that no branch points at
    ("core.hooksPath", os.devnull),
    ("core.fsmonitor", "false"),
    ("fetch.recurseSubmodules", "false"),
    ("submodule.recurse", "false"),
    ("gc.auto", "0"),
    ("maintenance.auto", "false"),
    ("advice.detachedHead", "false"),
    ("http.lowSpeedLimit", "1"),  # bytes per second; a server that thinks sends a byte now and then
    ("http.lowSpeedTime", "20"),  # seconds
)


class Cause(Enum):
    """Why git failed, as far as it matters for what to try next."""

    FULL = auto()  # the disk
    FOREIGN = auto()  # the tree belongs to somebody else
    REFUSED = auto()  # the server does not give out this commit by itself
    MISSING = auto()  # no such repository, or not for us
    UNREACHABLE = auto()
    OTHER = auto()


_SIGNS = (  # in this order: "the remote end hung up" follows other complaints too
    (Cause.FULL, r"no space left on device|disk quota exceeded"),
    (Cause.FOREIGN, r"dubious ownership"),
    (Cause.REFUSED, r"unadvertised object|not our ref|shallow capabilities|couldn't find remote ref"),
    (
        Cause.MISSING,
        (
            r"not found|does not exist|does not appear to be a git repository|no such file or directory"
            r"|could not read username|authentication failed|permission denied|returned error: 40[134]"
        ),
    ),
    (
        Cause.UNREACHABLE,
        (
            r"could not resolve|name resolution|failed to connect|couldn't connect|unable to connect"
            r"|timed out|connection (?:refused|reset|closed)|network is unreachable|no route to host"
            r"|too slow|early eof|rpc failed|hung up|tunnel|unexpected disconnect|ssl|gnutls"
            r"|returned error: [45]\d\d"
        ),
    ),
)


@dataclass(frozen=True, slots=True)
class Checkout:
    """A work tree and its git folder."""

    worktree: Path
    folder: Path

    def argv(self, *arguments: str) -> list[str]:
        """Return a git command about exactly this repository, never about one around it."""
        return ["git", f"--git-dir={self.folder}", *arguments]

    def git(self, *arguments: str) -> str:
        """Return what git says. Raises CommandError."""
        return process.capture(self.argv(*arguments), cwd=self.worktree, env=environment(os.environ))


def environment(base: Mapping[str, str]) -> dict[str, str]:
    """Return `base` with git made quiet, careful and English; the user's own settings stay."""
    env = {name: value for name, value in base.items() if name not in _FOREIGN}
    env |= {"GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}
    first = int(env.get("GIT_CONFIG_COUNT") or 0)
    for number, (key, value) in enumerate(_SETTINGS, first):
        env |= {f"GIT_CONFIG_KEY_{number}": key, f"GIT_CONFIG_VALUE_{number}": value}
    return env | {"GIT_CONFIG_COUNT": str(first + len(_SETTINGS))}


def diagnose(output: str) -> Cause:
    """Return what git's complaint comes from."""
    return next((cause for cause, signs in _SIGNS if re.search(signs, output, re.IGNORECASE)), Cause.OTHER)


def explained(error: CommandError, url: str, where: Path, request: Request) -> SuiteError:
    """Return the error to show when git failed on `url`, working in `where`."""
    cause, said = diagnose(error.output), gist(error.output)
    if cause is Cause.FULL:
        return disk_full(where)
    if cause is Cause.FOREIGN:
        return foreign(where)
    if cause is Cause.UNREACHABLE:
        return unreachable(host_of(url), said, request)
    return SourceError(
        f"{shown(url)}: git could not fetch {request.what} ({said}): run the command again; if that does not "
        f"help, delete {where} to begin anew"
    )


def foreign(tree: Path) -> SourceError:
    """Return the error for a repository that git will not read because of its owner."""
    return SourceError(
        f"{tree} belongs to another user, and git does not work in it: run as that user, `chown -R` it, or "
        f"`git config --global --add safe.directory {tree}`"
    )


def gist(output: str) -> str:
    """Return the line of git's complaint that says most."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    for sign in ("fatal:", "error:"):
        told = [
            line.partition(sign)[2].strip() for line in lines if line.startswith((sign, f"remote: {sign}"))
        ]
        if told:
            return shown(told[0].rstrip("."))
    return shown(lines[-1]) if lines else "it printed nothing"
