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

# Of util-linux. Sockets that are files, as the guard's is, can be reached from within.
_UNSHARE = "unshare"
_UNSHARE_OPTIONS = (
    ("--net",),  # as root
    ("--user", "--map-current-user", "--net"),  # as a user who stays the same one
    ("--user", "--map-root-user", "--net"),  # with an older unshare: who is root in there
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
    """How a build is started, and why it has the network if it has."""

    prefix: tuple[str, ...] = ()  # words before its command; none if it has the network
    why_open: str = ""  # "" if it has no network


def choose_sandbox(allowed: bool, cache: CompilerCache, variables: Mapping[str, str]) -> Sandbox:
    """Return the sandbox of a build with these variables; `allowed` is the user's --network."""
    if allowed:
        return Sandbox(why_open="--network")
    need = _network_need(cache, variables)
    if need:
        return Sandbox(why_open=need)
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
    """Return what the build has to reach over the network; "" if nothing."""
    if cache.tool == "sccache" and sccache.ADDRESS_VARIABLE not in variables:
        return "sccache's server is reached over it"
    storages = [variables.get(name, "") for name in compiler_cache.REMOTE_STORAGE]
    remote_storage = next(filter(None, storages), "file:")
    if not remote_storage.startswith("file:"):
        return f"ccache reaches {cache.shared or 'its remote storage'} over it"
    programs = []
    for name in _LAUNCHER_VARIABLES:
        programs += lenient_words(variables.get(name, "").replace(";", " "))
    # /usr/lib/icecc/bin/c++ is a link to icecc
    programs += [str(real_path(compiler)) for compiler in chosen_compilers(os.environ)]
    for program in programs:
        name = PurePath(program).name
        if name in _DISTRIBUTED:
            return f"{name} compiles on other machines"
    return ""
