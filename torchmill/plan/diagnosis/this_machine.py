"""Tell whether a log was written on this machine, and what this machine says about it then.

A log is from here if it names something that hardly another machine has: a path below the user's
home or the working folder. Else the tools that it names by their releases, /usr/bin/g++-12 or
/usr/local/cuda-12.8, must all be here. If the log says that it is from another system, nothing of
this machine counts.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import PurePosixPath

from torchmill.host.host import Compiler, Host
from torchmill.host.named_places import InstalledTorch
from torchmill.plan.diagnosis.host_facts import COMPILER_FACTS, host_facts
from torchmill.plan.diagnosis.named_paths import NamedPath
from torchmill.plan.diagnosis.situation import Fact, contradict

# The fact with the path by which a log was told to be from here.
WITNESS = "named_path"
# Facts that one machine has for years: where the log says otherwise, it is from another machine.
IDENTITY = ("system", "distribution", "glibc")
# Facts of a log that was written in a system of its own on some machine, maybe on this one.
_OTHER_SYSTEMS = ("container", "notebook")
_TOOL = re.compile(
    r"(?P<tool>/(?:usr/local|opt)/cuda-\d+\.\d+"
    r"|/usr/(?:local/)?bin/(?:g\+\+|gcc|clang(?:\+\+)?)-\d+"
    r"|/usr/(?:local/)?bin/python3\.\d+)(?:/|$)"
)
_SITE = re.compile(r"(?P<site>.+/(?:site|dist)-packages)(?:/|$)")
_ENVIRONMENT = re.compile(r"(?P<environment>.+)/bin/python[\d.]*$")
_USUAL_TOOLKIT = "/usr/local/cuda"  # a link to the folder of one release
_SYSTEM_FOLDERS = ("/usr/bin", "/usr/local/bin", "/bin")
_USUAL_COMPILERS = frozenset({"c++", "cc", "g++", "gcc"})
_MOST_PATHS = 40


def may_be_from_here(log_facts: Iterable[Fact], system: str) -> bool:
    """Tell whether nothing in a log rules out that it was written on a machine of a system."""
    for fact in log_facts:
        if fact.name in _OTHER_SYSTEMS or (fact.name == "system" and fact.value != system):
            return False
    return True


def own_paths(paths: Iterable[NamedPath], folders: Sequence[str]) -> list[NamedPath]:
    """Return those paths that lie below one of the user's folders.

    Hidden folders are left out: many machines have the same ~/.local and ~/.cache.
    """
    in_folders: list[NamedPath] = []
    for path in paths:
        for folder in folders:
            below = _part_below(path.path, folder)
            if below and not below.startswith("."):
                in_folders.append(path)
                break
    return in_folders[:_MOST_PATHS]


def named_tools(paths: Iterable[NamedPath]) -> list[NamedPath]:
    """Return the tools that a log names by their releases: "/usr/bin/g++-12", each once."""
    tools: dict[str, NamedPath] = {}
    for path in paths:
        match = _TOOL.match(path.path)
        if match:
            tools.setdefault(match["tool"], NamedPath(match["tool"], path.line))
    return list(tools.values())[:_MOST_PATHS]


def named_sites(paths: Iterable[NamedPath]) -> list[str]:
    """Return the folders of installed Python packages that a log names, each once."""
    return _named_folders(paths, _SITE, "site")


def named_environments(paths: Iterable[NamedPath]) -> list[str]:
    """Return the folders of environments whose Python a log names, each once."""
    return _named_folders(paths, _ENVIRONMENT, "environment")


def _named_folders(paths: Iterable[NamedPath], pattern: re.Pattern[str], group: str) -> list[str]:
    """Return what a group of a pattern matches in paths, each text once, in the log's order."""
    folders: dict[str, None] = {}  # an ordered set
    for path in paths:
        match = pattern.match(path.path)
        if match:
            folders[match[group]] = None
    return list(folders)[:_MOST_PATHS]


def machine_facts(
    host: Host,
    paths: Sequence[NamedPath],
    log_facts: Iterable[Fact],
    *,
    witness: NamedPath,
    usual_toolkit: str = "",
    torch: InstalledTorch | None = None,
) -> list[Fact]:
    """Return what a machine says about a log that was told to be from it by a `witness`.

    Of several compilers, toolkits and Pythons, those count that the log names. `usual_toolkit` is
    the folder behind /usr/local/cuda, `torch` the one in the environment that the log names. If the
    log is from another system after all, only the facts that show this are returned, and not even
    these if the witness is no more than a tool, which many machines have.
    """
    facts = {fact.name: fact for fact in host_facts(host, "machine")}
    for name, value in _named_values(host, paths, usual_toolkit, torch):
        facts[name] = Fact(name, value, "machine")
    other_system: list[Fact] = []
    for fact in log_facts:
        host_fact = facts.get(fact.name)
        is_identity = fact.name in IDENTITY and not fact.is_stated
        if is_identity and host_fact is not None and contradict(fact, host_fact):
            other_system.append(host_fact)
    if other_system:
        return [] if _TOOL.match(witness.path) else other_system
    return [Fact(WITNESS, witness.path, "log", witness.line, witness.path), *facts.values()]


def _named_values(
    host: Host, paths: Sequence[NamedPath], usual_toolkit: str, torch: InstalledTorch | None
) -> Iterator[tuple[str, str]]:
    """Yield the facts of the tools that a log names, the first of each kind."""
    toolkit = _named_toolkit(host.toolkits.homes, paths, usual_toolkit)
    if toolkit:
        yield "cuda", toolkit
    compiler = _named_compiler(host, paths)
    if compiler is not None and compiler.family in COMPILER_FACTS:
        yield COMPILER_FACTS[compiler.family], compiler.version
    versions = {path: version for version, path in host.interpreters.paths.items()}
    for path in paths:
        if path.path in versions:
            yield "python", versions[path.path].rstrip("t")
            break
    if torch is None:
        return
    if torch.python:
        yield "python", torch.python
    yield "torch", torch.version
    if torch.cuda:
        yield "torch_cuda", torch.cuda
    else:
        yield "torch_kind", "without CUDA"


def _named_toolkit(
    homes: Mapping[str, str], paths: Iterable[NamedPath], usual_toolkit: str
) -> str | None:
    """Return the release of the first toolkit that a log names by its folder; None for none."""
    for path in paths:
        text = path.path
        below = _part_below(text, _USUAL_TOOLKIT)
        if usual_toolkit and (below or text == _USUAL_TOOLKIT):
            text = f"{usual_toolkit}/{below}"
        for version, home in homes.items():
            # Debian's toolkit is spread over /usr, which every log names.
            nvcc = f"{home}/bin/nvcc"
            is_spread = PurePosixPath(home) == PurePosixPath("/usr")
            if text == nvcc or (not is_spread and _part_below(text, home)):
                return version
    return None


def _named_compiler(host: Host, paths: Iterable[NamedPath]) -> Compiler | None:
    """Return the first compiler that a log names by its path; None for none."""
    by_command = host.compilers.by_command
    for path in paths:
        if path.path in by_command:
            return by_command[path.path]
        folder, _, command = path.path.rpartition("/")
        if folder not in _SYSTEM_FOLDERS:
            continue
        # gcc-12 and g++-12 are of one release.
        command = command.replace("gcc", "g++")
        if command in by_command:
            return by_command[command]
        if command in _USUAL_COMPILERS:
            return host.compilers.default
    return None


def _part_below(path: str, folder: str) -> str:
    """Return the part of a path below a folder; "" if it does not lie below it."""
    prefix = f"{folder.rstrip('/')}/"
    return path[len(prefix) :] if path.startswith(prefix) else ""
