"""Real clients that choose among wheel variants: uv with its preview, forced to a machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from http.server import SimpleHTTPRequestHandler
from pathlib import Path
from typing import Any

from tests.support.made_index import UV

PREVIEW = ("--preview-features", "wheel-variants")
FORCED_GPU = "NV_VARIANT_PROVIDER_FORCE_SM_ARCH"
FORCED_DRIVER = "NV_VARIANT_PROVIDER_FORCE_CUDA_DRIVER_VERSION"


def forced(capability: str, driver: str = "13.2") -> dict[str, str]:
    """Return the variables that make uv's provider tell of a GPU and a driver."""
    return {FORCED_GPU: capability, FORCED_DRIVER: driver}


def run_uv(
    folder: Path, arguments: Sequence[str], variables: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    """Run uv in a folder, without its cache and whatever is configured on this machine."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("UV_", "NV_"))}
    # not --no-config, which would also hide the settings of the project in this folder
    nowhere = {"XDG_CONFIG_HOME": str(folder / "nowhere"), "XDG_CONFIG_DIRS": "/nonexistent"}
    return subprocess.run(
        [UV, "--no-cache", *arguments],
        cwd=folder,
        env=env | nowhere | dict(variables),
        capture_output=True,
        text=True,
        check=False,
    )


def installed_label(site: Path) -> str:
    """Return the label of the variant that was installed, "" of a plain wheel."""
    (dist_info,) = site.glob("*torch-*.dist-info")
    file = dist_info / "variant.json"
    if not file.is_file():
        return ""
    (label,) = json.loads(file.read_text("utf-8"))["variants"]
    return str(label)


def pip_install(
    folder: Path,
    index: str,
    requirement: str,
    variables: Mapping[str, str],
    *options: str,
    python: Path | str = sys.executable,
) -> str:
    """Install with `uv pip install` for a Python, and return the label of what was installed."""
    target = folder / "target"
    done = run_uv(
        folder,
        [
            "pip",
            "install",
            "--python",
            str(python),
            "--target",
            str(target),
            "--reinstall",
            "--no-deps",
            *options,
            "--index-url",
            index,
            requirement,
        ],
        variables,
    )
    assert done.returncode == 0, done.stderr
    return installed_label(target)


class JsonPages(SimpleHTTPRequestHandler):
    """Serves an index as JSON to clients that ask for it, as a host can do that chooses."""

    def send_head(self) -> Any:
        """Answer for a folder with its JSON page."""
        folder = Path(self.translate_path(self.path))
        if folder.is_dir() and "vnd.pypi.simple.v1+json" in self.headers.get("Accept", ""):
            self.path = f"{self.path.rstrip('/')}/index.v1_json"
        return super().send_head()

    def guess_type(self, path: Any) -> str:
        """Return the media type of a file, also of a JSON page."""
        if str(path).endswith(".v1_json"):
            return "application/vnd.pypi.simple.v1+json"
        return super().guess_type(path)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        """Print nothing."""


def lock(folder: Path, index: str, requirement: str, variables: Mapping[str, str]) -> str:
    """Lock a project with `uv lock`, and return the lock file."""
    (folder / "pyproject.toml").write_text(
        "[project]\nname = 'user'\nversion = '1'\nrequires-python = '>=3.11'\n"
        f"dependencies = ['{requirement}']\n"
        f"[[tool.uv.index]]\nname = 'ours'\nurl = '{index}'\ndefault = true\n"
    )
    done = run_uv(folder, [*PREVIEW, "lock", "--python", sys.executable], variables)
    assert done.returncode == 0, done.stderr
    return (folder / "uv.lock").read_text("utf-8")


def run_tool(folder: Path, command: Sequence[str | Path]) -> None:
    """Run Poetry or PDM in a folder, without what they keep or are told elsewhere."""
    variables = {
        "POETRY_CACHE_DIR": str(folder / "cache"),
        "POETRY_NO_INTERACTION": "1",
        "PYTHON_KEYRING_BACKEND": "keyring.backends.null.Keyring",
        "PDM_CACHE_DIR": str(folder / "cache"),
        "PDM_CHECK_UPDATE": "0",
        "PDM_LOG_DIR": str(folder / "log"),
        "XDG_CONFIG_HOME": str(folder / "config"),
        "VIRTUAL_ENV": str(folder / ".venv"),
    }
    if not (folder / ".venv").exists():
        subprocess.run([UV, "venv", "-q", "--python", sys.executable, folder / ".venv"], check=True)
    done = subprocess.run(
        command, cwd=folder, env=os.environ | variables, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
