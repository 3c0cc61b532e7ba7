"""Who uses a tree: an interpreter and its packages, which compilers read."""

import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from torchmill.core.process import ask
from torchmill.core.stat_cache import digest_data
from torchmill.core.strict_json import parse_json
from torchmill.host.environments import installed_distributions

_PROBE = """\
import json, sys, sysconfig
paths = sysconfig.get_paths()
print(json.dumps([sys.version, paths["include"], paths["platinclude"]]))
"""


@dataclass(frozen=True, slots=True)
class TreeUser:
    """The interpreter that a tree was last used with, and its packages."""

    identity: str  # digest; "" of one that has not compiled anything in the tree yet
    headers: tuple[str, ...]  # folders of the interpreter's own headers
    folders: tuple[str, ...]  # folders of all files of this user that an object may depend on

    def to_json(self) -> str:
        """Return the text that `read_tree_user` reads."""
        return json.dumps(asdict(self))


def read_tree_user(file: Path) -> TreeUser | None:
    """Return the user that a file names; None if it cannot be read, or names none."""
    try:
        data = parse_json(file.read_text(encoding="utf-8"))
        return TreeUser(str(data["identity"]), tuple(data["headers"]), tuple(data["folders"]))
    except (OSError, ValueError, TypeError, KeyError):
        return None


def tree_user(venv: Path, python: Path, purpose: str, link: Path) -> TreeUser:
    """Return the user of a tree: an environment that was filled for a purpose.

    `link` is the link in the tree that leads to the environment. Two with the same identity
    compile the same: their interpreter, headers and installed packages are the same.
    """
    version, *include_folders = parse_json(ask([str(python), "-I", "-c", _PROBE]))
    headers = _with_real_paths(include_folders)
    packages = installed_distributions(venv, purpose)
    identity = digest_data([str(venv), purpose, version, headers, packages])
    return TreeUser(identity, headers, _with_real_paths([str(link), str(venv), *headers]))


def _with_real_paths(folders: Iterable[str]) -> tuple[str, ...]:
    """Return folders as they are written and as they really are, each once.

    Compilers record either in the dependencies of an object.
    """
    paths: dict[str, None] = {}  # an ordered set
    for folder in folders:
        paths[folder] = None
        paths[os.path.realpath(folder)] = None
    return tuple(paths)
