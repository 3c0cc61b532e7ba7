"""The installed torchmill: the suite lies beside the package torchmill, and works for a home elsewhere.

pip installs the files of a checkout that are no modules into this folder (pyproject.toml lists
them). The home, the folder of wheels, environments and state, is the folder in which the command
`torchmill` is called.
"""

import atexit
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from torchmill.config.own_facts import merge_facts
from torchmill.core.exits import as_torchmill_error, format_error
from torchmill.core.homes import require_own_home
from torchmill.core.paths import CHECKOUT, CONFIGS, Layout

SUITE = CHECKOUT  # the folder of noxfile.py and tasks.py, which those of a project read


def start(home: Path) -> None:
    """Let the suite work for a home: wheels and state lie there, and its facts replace shipped ones.

    Ends the program with a message for facts with mistakes, and for state that may not be the
    user's. TORCHMILL_HOME, if it is set, names another home.
    """
    with end_with_message():
        _choose_home(home)
        _choose_facts(home / "build_configs")


@contextmanager
def end_with_message() -> Iterator[None]:
    """End the program with one message and an exit code if the block fails."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - whatever it is, it is one message
        torchmill_error = as_torchmill_error(error)
        sys.stderr.write(f"{format_error(torchmill_error)}\n")
        sys.exit(torchmill_error.exit_code)


def _choose_home(home: Path) -> None:
    """Set the variables for the home and its environments, unless the user has set them."""
    if os.environ.get("TORCHMILL_HOME"):
        layout = Layout.of_checkout(SUITE)
    else:
        os.environ["TORCHMILL_HOME"] = str(home)
        layout = Layout.of_checkout(SUITE)
        # The user did not name this folder: it may be a clone of somebody's repository, whose files
        # torchmill must neither trust nor delete.
        require_own_home(layout)
    os.environ.setdefault("NOX_ENVDIR", str(layout.root / ".nox"))


def _choose_facts(project_facts: Path) -> None:
    """Set the variables for the facts: those of a project are put before those of the suite."""
    os.environ.setdefault("TORCHMILL_OWN_CONFIGS", str(project_facts))
    if "TORCHMILL_CONFIGS" in os.environ:
        return
    shipped_facts = SUITE / "build_configs"
    cache = Layout.of_checkout(SUITE).cache
    try:
        merged = merge_facts(project_facts, shipped_facts, cache / CONFIGS)
    except OSError:
        # A cache that cannot be written must not stop the commands: they run slower without it.
        merged = merge_facts(project_facts, shipped_facts, _temporary_folder())
    if merged is not None:
        os.environ["TORCHMILL_CONFIGS"] = str(merged)


def _temporary_folder() -> Path:
    """Return a new folder, which is removed when this program ends."""
    folder = tempfile.mkdtemp(prefix="torchmill-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)
