"""Cut a build off from the network, so that nothing goes into a wheel that nobody recorded."""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePath

from torchmill.core.errors import HostError
from torchmill.core.process import CommandError, capture
from torchmill.toolchain import sccache
from torchmill.toolchain.compiler_cache import CompilerCache
from torchmill.toolchain.compiler_identity import command_words

_PROGRAM = "unshare"  # of util-linux; sockets that are files, as the guard's, are reached from within
# As root; as a user who stays the same one; as a user who is root in there, where unshare is older.
_WAYS = (("--net",), ("--user", "--map-current-user", "--net"), ("--user", "--map-root-user", "--net"))
_REMOTE_STORAGE = ("CCACHE_REMOTE_STORAGE", "CCACHE_SECONDARY_STORAGE")
_DISTRIBUTED = {"distcc", "icecc"}  # compilers that send their work to other machines
_LAUNCHERS = ("CC", "CXX", "CCACHE_PREFIX", *(f"CMAKE_{one}_COMPILER_LAUNCHER" for one in ("C", "CXX", "CUDA")))


@dataclass(frozen=True, slots=True)
class Sandbox:
    """How a build is started, and why it has the network where it does."""

    prefix: tuple[str, ...] = ()  # words before its command; none: it has the network
    why_open: str = ""  # "" where it has none


def choose_sandbox(allowed: bool, cache: CompilerCache, variables: Mapping[str, str]) -> Sandbox:
    """Return the sandbox of a build with these variables; `allowed` says that it may have the network."""
    if why := "--network" if allowed else _why_needed(cache, variables):
        return Sandbox(why_open=why)
    if shutil.which(_PROGRAM) is None:
        return Sandbox(why_open="only Linux can take it away, by `unshare` (util-linux)")
    why = ""
    for options in _WAYS:
        try:
            capture([_PROGRAM, *options, "--", "true"])
        except (CommandError, HostError) as error:
            why = str(error)
        else:
            return Sandbox((_PROGRAM, *options, "--"))
    return Sandbox(why_open=f"this system does not let it be taken away: {why}")


def _why_needed(cache: CompilerCache, variables: Mapping[str, str]) -> str:
    """Return what the build reaches over the network; "" where there is nothing."""
    if cache.tool == "sccache" and sccache.ADDRESS_VARIABLE not in variables:
        return "sccache's server is reached over it"
    remote = next((value for name in _REMOTE_STORAGE if (value := variables.get(name, ""))), "file:")
    if not remote.startswith("file:"):
        return f"ccache reaches {cache.shared or 'its remote storage'} over it"
    words = (word for name in _LAUNCHERS for word in command_words(variables.get(name, "").replace(";", " ")))
    name = next((name for word in words if (name := PurePath(word).name) in _DISTRIBUTED), None)
    return f"{name} compiles on other machines" if name else ""
