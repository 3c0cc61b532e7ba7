"""An index in a temporary folder, written by what `invoke index` calls, and clients that install from it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

from torchmill.commands import index
from torchmill.commands.command import CommandOutput
from torchmill.config.facts import Facts
from torchmill.core.paths import Layout

UV = shutil.which("uv", path=str(Path(sys.executable).parent)) or shutil.which("uv") or "uv"
PIP = (sys.executable, "-m", "pip", "--no-cache-dir", "--disable-pip-version-check")


@dataclass(frozen=True)
class Home:
    """A checkout's folder: dist/ and index/ are in it."""

    path: Path
    facts: Facts

    @property
    def dist(self) -> Path:
        return self.path / "dist"

    @property
    def out(self) -> Path:
        return self.path / "index"

    def written(self, **options: Any) -> CommandOutput:
        return index.write_index(self.facts, Layout(self.path, self.path / "cache"), **options)

    def index(self, **options: Any) -> str:
        return str(self.written(**options))

    def told(self, **options: Any) -> dict[str, Any]:
        data: dict[str, Any] = json.loads(json.dumps(self.written(**options).data))
        return data

    def page(self, folder: str) -> dict[str, Any]:
        data: dict[str, Any] = json.loads((self.out / folder / "index.v1_json").read_text("utf-8"))
        return data

    def names(self, folder: str) -> list[str]:
        return [file["filename"] for file in self.page(folder)["files"]]

    def variants_file(self, project: str) -> Path:
        """Return the metadata of a project's variants; it has those of one version."""
        (path,) = (self.out / project).glob("*/*-variants.json")
        return path

    def look(self) -> dict[str, tuple[int, int, bytes]]:
        """Return how every file of the index looks, and what is in it."""
        files = [path for path in self.out.rglob("*") if path.is_file()]
        return {
            str(path.relative_to(self.out)): (
                path.stat().st_mtime_ns,
                path.stat().st_ino,
                path.read_bytes(),
            )
            for path in files
        }


@contextmanager
def served(
    root: Path, handler_class: type[SimpleHTTPRequestHandler] = SimpleHTTPRequestHandler
) -> Iterator[int]:
    """Serve an index for as long as the context lasts, and return the port."""
    handler = partial(handler_class, directory=str(root))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()


def install(client: str, into: Path, arguments: Sequence[str]) -> str:
    """Install with a real client that no configuration of this machine reaches; return what it said."""
    command = PIP if client == "pip" else (UV, "--no-config", "--no-cache", "pip")
    extra = ("--target", str(into), *(("--python", sys.executable) if client == "uv" else ()))
    env = {
        name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "UV_"))
    }
    done = subprocess.run(
        [*command, "install", *extra, *arguments],
        env=env | {"PIP_CONFIG_FILE": os.devnull},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def installed(into: Path) -> set[str]:
    """Return what was installed: "tinytorch-1.0+cpu"."""
    return {path.name.removesuffix(".dist-info") for path in into.glob("*.dist-info")}
