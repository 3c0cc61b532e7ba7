"""The lock file of a snippet (PEP 751): uv resolves the project that it would get, for its platforms.

Unlike the other snippets, it names everything that the wheels require, with the sha256 of each file.
So the indexes are asked, and uv is needed: it writes the format, which pip reads, too.
https://packaging.python.org/en/latest/specifications/pylock-toml/
"""

import os
import posixpath
import tempfile
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import unquote, urlsplit

import tomlkit

from torchmill.core import uv_program
from torchmill.core.errors import DeliveryError, HostError
from torchmill.core.process import CommandError, ask
from torchmill.deliver.snippet.model import SnippetDecision
from torchmill.deliver.snippet.tools import fill_snippet, render_uv

_SECONDS = 600.0


def render_pylock(decisions: Sequence[SnippetDecision]) -> str:
    """Return pylock.toml for the decision of a project, of which there must be one.

    Raises HostError without uv, DeliveryError if uv finds no versions that go together, or cannot
    reach an index.
    """
    (decision,) = decisions
    oldest = decision.pythons[0].rstrip("t")
    with tempfile.TemporaryDirectory() as folder:
        project = Path(folder, "pyproject.toml")
        project.write_text(render_uv(decisions), encoding="utf-8")
        command = [*uv_program.uv_command(), "pip", "compile", str(project), "--quiet"]
        command += ["--universal", "--python-version", oldest, "--no-python-downloads"]
        command += ["--format", "pylock.toml", "--no-header"]
        try:
            lock = ask(command, os.environ, _SECONDS)
        except (CommandError, HostError) as error:
            output = " ".join(str(getattr(error, "output", error)).split())
            raise DeliveryError(
                f"--tool pylock: uv cannot lock the project ({output}): `invoke snippet --tool uv` "
                "prints it",
                code="cannot-lock",
            ) from None
    return f"{fill_snippet('pylock.toml', decisions)}\n\n{_name_wheels(lock)}".rstrip("\n")


def _name_wheels(lock: str) -> str:
    """Return a lock file that also names the wheels whose names are quoted in their URLs.

    uv leaves the names out, and pip 26.1 and 26.2 then take "torch-1.13.1%2Bcpu-…" for a wrong name.
    """
    document = tomlkit.parse(lock)
    for package in document["packages"]:
        for wheel in package.get("wheels", ()):
            file = posixpath.basename(urlsplit(wheel.get("url", "")).path)
            if unquote(file) != file:
                wheel["name"] = unquote(file)
    return tomlkit.dumps(document)
