"""torchmill as pip installs it: the whole suite lies in this folder, and works for the folder it is called in."""

import atexit
import os
import shutil
import sys
import tempfile
from pathlib import Path

SUITE = Path(__file__).parent
EARLY_ERROR = 1  # exit code of what is wrong before the suite could say so itself


def start(home: Path) -> None:
    """Let the suite work for a folder: what it makes lies there, and facts in its build_configs/ go before its own.

    A folder that the user did not name (TORCHMILL_HOME) may be a clone of somebody's repository: what lies there is
    used only if the user made it. Ends the program with a message if something is wrong.
    """
    if str(SUITE) not in sys.path:
        sys.path.insert(0, str(SUITE))
    from torchmill.core.errors import TorchmillError
    from torchmill.core.exits import format_error

    try:
        _start(home)
    except (TorchmillError, OSError) as error:
        sys.stderr.write(f"{format_error(error)}\n")
        sys.exit(error.exit_code if isinstance(error, TorchmillError) else EARLY_ERROR)


def _start(home: Path) -> None:
    from torchmill.config.own_facts import merge_facts
    from torchmill.core.homes import require_own_home
    from torchmill.core.paths import CONFIGS, Layout

    named = bool(os.environ.get("TORCHMILL_HOME"))
    if not named:
        os.environ["TORCHMILL_HOME"] = str(home)
    layout = Layout.of_checkout(SUITE)
    if not named:
        require_own_home(layout)
    os.environ.setdefault("NOX_ENVDIR", str(layout.root / ".nox"))
    own = home / "build_configs"
    os.environ.setdefault("TORCHMILL_OWN_CONFIGS", str(own))
    if "TORCHMILL_CONFIGS" not in os.environ:
        shipped = SUITE / "build_configs"
        try:
            merged = merge_facts(own, shipped, layout.cache / CONFIGS)
        except (
            OSError
        ):  # a cache that is closed to us costs time in all other commands, and nothing else
            merged = merge_facts(own, shipped, _temporary_folder())
        if merged is not None:
            os.environ["TORCHMILL_CONFIGS"] = str(merged)


def _temporary_folder() -> Path:
    """Return a folder that goes when this program ends."""
    folder = tempfile.mkdtemp(prefix="torchmill-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)
