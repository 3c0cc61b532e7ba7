"""A user's folder with the sample upstream fetched, for tests that run the real nox on it."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.support.commands import ROOT, environment, run
from torchmill.host.native import native_arch

THIS = f"{sys.version_info.major}.{sys.version_info.minor}"


class Sample:
    """A user's folder with the sample upstream fetched, and facts of its own that a test may edit."""

    def __init__(self, folder: Path, envs: Path, cache: Path) -> None:
        self.folder = folder
        self.home = folder / "home"
        self.configs = folder / "build_configs"
        self.envs = envs
        self.cache = cache / "torchmill"
        pip = envs.with_name("pip")  # what it brought once is the same for all
        self.env = {
            "TORCHMILL_CONFIGS": str(self.configs),
            "XDG_CACHE_HOME": str(cache),
            "PIP_CACHE_DIR": str(pip),
        }

    def nox(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return run("nox", *self._arguments(arguments), home=self.home, env=self.env)

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "nox", *self._arguments(arguments)],
            cwd=ROOT,
            env=environment(self.home, self.env),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def _arguments(self, arguments: tuple[str, ...]) -> tuple[str, ...]:
        return ("--envdir", str(self.envs), *arguments)

    def wheels(self) -> list[str]:
        return sorted(path.name for path in (self.home / "dist").glob("*.whl"))

    def manifest(self, wheel: str) -> dict[str, Any]:
        text = (self.home / "dist" / f"{wheel}.json").read_text(encoding="utf-8")
        found = json.loads(text)
        assert isinstance(found, dict)
        return found

    def publish(self) -> None:
        """Let the facts name a wheel of the first release on PyPI, for this Python."""
        with (self.configs / "releases" / "1.0.0.toml").open("a", encoding="utf-8") as file:
            file.write(f'\n[tinytorch.wheels]\nmanylinux_2_17_{native_arch()} = ["{THIS}"]\n')
        (self.configs / "indexes.toml").write_text(
            '[[wheels]]\nname = "pypi"\nurl = "https://pypi.org/simple"\ndefault = true\npackages = ["tinytorch"]\n'
            f'release = ">=1.0"\nvariants = ["cpu"]\narches = ["{native_arch()}"]\nsource = "a test"\n',
            encoding="utf-8",
        )

    def add_rule(self, text: str) -> None:
        with (self.configs / "packages" / "tinytorch.toml").open("a", encoding="utf-8") as file:
            file.write(f"\n[[rule]]\n{text}\n")


def fetched(folder: Path, upstream: Path, envs: Path, cache: Path | None = None) -> Sample:
    """Fetch the sample's first release into a folder.

    `envs` is where nox keeps its environments, of which each is made once; `cache` is the user's cache, and
    below the folder unless others' objects may be taken from it.
    """
    sample = Sample(folder, envs, cache or folder / "home" / "cache")
    shutil.copytree(ROOT / "sample" / "build_configs", sample.configs)
    done = run(
        "invoke", "fetch", "--tag=v1.0.0", "--all", f"--mirror=file://{upstream}",
        home=sample.home, env=sample.env,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return sample
