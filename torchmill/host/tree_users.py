"""The user of a tree: an interpreter and its packages, whose headers compilers read.

Cells of one family share a tree, one after the other, so that each Python compiles only what
depends on it. The tree records its last user. If the next one differs, the objects that depend on
the files of the former have to be compiled again.
"""

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

    # Digest: two users with the same one compile the same. "" if nothing was compiled yet.
    identity: str
    headers: tuple[str, ...]  # the folders of the interpreter's headers
    folders: tuple[str, ...]  # the folders of all its files on which an object may depend

    def to_json(self) -> str:
        """Return the text that `read_tree_user` reads."""
        return json.dumps(asdict(self))


def read_tree_user(file: Path) -> TreeUser | None:
    """Return the user that a file records; None if the file cannot be read."""
    try:
        data = parse_json(file.read_text(encoding="utf-8"))
        return TreeUser(str(data["identity"]), tuple(data["headers"]), tuple(data["folders"]))
    except (OSError, ValueError, TypeError, KeyError):
        return None


def tree_user(venv: Path, python: Path, purpose: str, link: Path) -> TreeUser:
    """Return the environment `venv`, which was filled for a purpose, as the user of a tree.

    `python` is its interpreter, and `link` the link in the tree that leads to the environment.
    Raises CommandError if the interpreter fails.
    """
    version, *include_folders = parse_json(ask([str(python), "-I", "-c", _PROBE]))
    headers = _with_real_paths(include_folders)
    packages = installed_distributions(venv, purpose)
    identity = digest_data([str(venv), purpose, version, headers, packages])
    return TreeUser(identity, headers, _with_real_paths([str(link), str(venv), *headers]))


def _with_real_paths(folders: Iterable[str]) -> tuple[str, ...]:
    """Return folders and their paths without links, each once.

    Compilers record either of them in the dependencies of an object.
    """
    paths: dict[str, None] = {}  # an ordered set
    for folder in folders:
        paths[folder] = None
        paths[os.path.realpath(folder)] = None
    return tuple(paths)
