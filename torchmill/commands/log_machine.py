"""What this machine says about a log, if it names paths that are here."""

from collections.abc import Sequence
from pathlib import Path

from torchmill.core.lenient_paths import real_path
from torchmill.host.measurement import measure_host
from torchmill.host.named_places import find_torch, first_existing
from torchmill.host.native import native_system
from torchmill.plan.diagnosis import this_machine
from torchmill.plan.diagnosis.named_paths import NamedPath
from torchmill.plan.diagnosis.situation import Fact

# Folders of the system in which the doctor looks for tools. What is not below these, the user's home
# or the working folder is not looked at, whatever a log names.
_SYSTEM_FOLDERS = ("/usr/bin", "/usr/lib", "/usr/local", "/opt")
# Folders that are nobody's own, although commands may be started there.
_SHARED_FOLDERS = ("/", "/tmp", "/var/tmp", *_SYSTEM_FOLDERS)  # noqa: S108 - nothing is written


def read_machine_facts(paths: Sequence[NamedPath], log_facts: Sequence[Fact]) -> Sequence[Fact]:
    """Return what this machine says about a log that names some paths; [] if it is not from here.

    The doctor's measurements are used. Nothing is run because the log names it.
    """
    system = native_system()
    if system == "windows" or not this_machine.may_be_from_here(log_facts, system):
        return []
    own_folders = [
        folder for folder in (str(Path.home()), str(Path.cwd())) if folder not in _SHARED_FOLDERS
    ]
    folders = (*own_folders, *_SYSTEM_FOLDERS)
    witness = _find_witness(paths, own_folders)
    if witness is None:
        return []
    return this_machine.machine_facts(
        measure_host(Path.cwd()),
        paths,
        log_facts,
        witness=witness,
        usual_toolkit=str(real_path("/usr/local/cuda")),
        torch=find_torch(
            this_machine.named_sites(paths), this_machine.named_environments(paths), folders
        ),
    )


def _find_witness(paths: Sequence[NamedPath], own_folders: Sequence[str]) -> NamedPath | None:
    """Return the path that shows that a log is from this machine; None if none does.

    That is one of the user's own, or else a tool, if all that the log names are here.
    """
    own = this_machine.own_paths(paths, own_folders)
    found = first_existing([path.path for path in own], own_folders)
    for path in own:
        if path.path == found:
            return path
    tools = this_machine.named_tools(paths)
    missing = [tool for tool in tools if not first_existing([tool.path], _SYSTEM_FOLDERS)]
    return tools[0] if tools and not missing else None
