"""Cut a build off from the network, so that nothing unrecorded goes into its wheel."""

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePath

from torchmill.core.errors import HostError
from torchmill.core.lenient_paths import real_path
from torchmill.core.process import CommandError, capture
from torchmill.host.compilers import chosen_compilers, lenient_words
from torchmill.toolchain import compiler_cache, sccache
from torchmill.toolchain.compiler_cache import CompilerCache

# A program of util-linux, which starts another one in a namespace without a network. Sockets that
# are files, such as the guard's, can still be reached from there.
_UNSHARE = "unshare"
_UNSHARE_OPTIONS = (
    ("--net",),  # as root
    ("--user", "--map-current-user", "--net"),  # as a user, who has the same number inside
    ("--user", "--map-root-user", "--net"),  # with an older unshare, as a user who is root inside
)
_DISTRIBUTED = {"distcc", "icecc"}  # compilers that send their work to other machines
_LAUNCHER_VARIABLES = (
    "CC",
    "CXX",
    "CCACHE_PREFIX",
    "CMAKE_C_COMPILER_LAUNCHER",
    "CMAKE_CXX_COMPILER_LAUNCHER",
    "CMAKE_CUDA_COMPILER_LAUNCHER",
)


@dataclass(frozen=True, slots=True)
class Sandbox:
    """The way in which a build is cut off from the network, or the reason why it is not."""

    prefix: tuple[str, ...] = ()  # words before its command; () if it has the network
    why_open: str = ""  # the reason why it has the network; "" if it has none


def choose_sandbox(
    cache: CompilerCache, variables: Mapping[str, str], *, network_allowed: bool
) -> Sandbox:
    """Return the sandbox of a build.

    `variables` are the environment of the build, and `network_allowed` is the user's --network.
    """
    if network_allowed:
        return Sandbox(why_open="--network")
    need = _network_need(cache, variables)
    if need:
        return Sandbox(why_open=need)
    return find_sandbox()


def find_sandbox() -> Sandbox:
    """Return the sandbox of a program that needs no network, after a trial with another program.

    Where `unshare` is missing or refused, the program keeps the network, and `why_open` says why.
    """
    if shutil.which(_UNSHARE) is None:
        return Sandbox(why_open="only Linux can take it away, with `unshare` (util-linux)")
    refusal = ""
    for options in _UNSHARE_OPTIONS:
        try:
            capture([_UNSHARE, *options, "--", "true"])
        except (CommandError, HostError) as error:
            refusal = str(error)
        else:
            return Sandbox((_UNSHARE, *options, "--"))
    return Sandbox(why_open=f"this system does not let it be taken away: {refusal}")


def _network_need(cache: CompilerCache, variables: Mapping[str, str]) -> str:
    """Return what the build has to reach over the network, as a clause; "" if nothing."""
    if cache.tool == "sccache" and sccache.ADDRESS_VARIABLE not in variables:
        return "sccache's server is reached over it"
    for name in compiler_cache.REMOTE_STORAGE:
        # Of several storages, separated by blanks, any may be on another machine.
        for storage in variables.get(name, "").split():
            if not storage.startswith("file:"):
                return f"ccache reaches {cache.shared or 'its remote storage'} over it"
    programs = []
    for name in _LAUNCHER_VARIABLES:
        programs += lenient_words(variables.get(name, "").replace(";", " "))
    # A compiler on PATH may be a link to such a program, as /usr/lib/icecc/bin/c++ is.
    programs += [str(real_path(compiler)) for compiler in chosen_compilers(os.environ)]
    for program in programs:
        name = PurePath(program).name
        if name in _DISTRIBUTED:
            return f"{name} compiles on other machines"
    return ""
