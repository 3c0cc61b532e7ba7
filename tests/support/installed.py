"""The suite as pip installs it, without pip: a folder to import it from, and how to run its command `torchmill`."""

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

from tests.support.commands import OURS, ROOT

UNWANTED = shutil.ignore_patterns("__pycache__", "*.pyc")


def install_suite(site: Path) -> Path:
    """Copy the suite to where pip would put it in `site`, and return `site`."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    target = settings["tool"]["hatch"]["build"]["targets"]["wheel"]
    included = {name: name for name in target["packages"]} | target["force-include"]
    for name, place in included.items():
        (site / place).parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, site / place, ignore=UNWANTED, dirs_exist_ok=True)
        else:
            shutil.copyfile(ROOT / name, site / place)
    info = site / "torchmill-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: torchmill\nVersion: 0.1.0\n", encoding="utf-8"
    )
    return site


def user_environment(site: Path, home: Path) -> dict[str, str]:
    """Return the environment of a user whose HOME is `home`, with the suite of `site`; his cache lies beside HOME."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(OURS)}
    return kept | {
        "HOME": str(home),
        "XDG_CACHE_HOME": str(home.with_name("cache")),
        "PYTHONPATH": str(site),
        "PYTHONDONTWRITEBYTECODE": "1",
        "NO_COLOR": "1",
    }


def run_torchmill(
    site: Path, home: Path, folder: Path, *words: str, named: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run the command `torchmill` in a folder, to its end; nothing is typed. `named` is what TORCHMILL_HOME names."""
    environment = user_environment(site, home) | ({"TORCHMILL_HOME": str(named)} if named else {})
    return subprocess.run(
        [sys.executable, "-P", "-m", "torchmill_suite", *words],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
