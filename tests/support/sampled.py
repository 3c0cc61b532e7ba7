"""A user's folder with the sample upstream fetched, for tests that run the real nox on it."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.commands import ROOT, environment, run, start
from tests.support.documents import assert_fits
from torchmill.cell.context import BuildContext, create_context
from torchmill.config import remembered_facts, selection
from torchmill.core.paths import EMPTY_ENVIRONMENTS, Layout
from torchmill.host import interpreters
from torchmill.host.native import native_arch
from torchmill.plan import cell_lookup

THIS = f"{sys.version_info.major}.{sys.version_info.minor}"


class Sample:
    """A user's folder with the sample upstream fetched, and facts of its own that a test may edit."""

    def __init__(self, folder: Path, envs: Path, cache: Path) -> None:
        self.folder = folder
        self.home = folder / "home"
        self.configs = folder / "build_configs"
        self.envs = envs
        self.cache = cache / "torchmill"
        self.cache.mkdir(parents=True, exist_ok=True)
        if not (empty := self.cache / EMPTY_ENVIRONMENTS).exists():
            envs.with_name("environments").mkdir(parents=True, exist_ok=True)
            empty.symlink_to(envs.with_name("environments"))
        self.env = {
            "TORCHMILL_CONFIGS": str(self.configs),
            "XDG_CACHE_HOME": str(cache),
            "PIP_CACHE_DIR": str(envs.with_name("pip")),
        }

    def nox(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return run("nox", *self._arguments(arguments), home=self.home, env=self.env)

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return start(("nox", *self._arguments(arguments)), self.home, self.env)

    def _arguments(self, arguments: tuple[str, ...]) -> tuple[str, ...]:
        return ("--envdir", str(self.envs), *arguments)

    def wheels(self) -> list[str]:
        return sorted(path.name for path in (self.home / "dist").glob("*.whl"))

    def manifest(self, wheel: str) -> dict[str, Any]:
        text = (self.home / "dist" / f"{wheel}.json").read_text(encoding="utf-8")
        found = json.loads(text)
        assert isinstance(found, dict)
        assert_fits(found, "manifest")
        return found

    def check_records(self) -> None:
        """Fail unless every ledger and every record of a source fits its schema."""
        state = self.home / ".torchmill"
        for pattern, name in (("ledger", "ledger"), ("source.json", "source_record")):
            paths = list(state.rglob(pattern))
            assert paths, pattern
            for path in paths:
                assert_fits(json.loads(path.read_text(encoding="utf-8")), name)

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


@contextmanager
def in_this_process(
    sample: Sample, session: str, env: Mapping[str, str]
) -> Iterator[Callable[..., BuildContext]]:
    """Let this process have a user's variables; yield what returns the context of a session, as the session does."""
    variables = environment(sample.home, {**sample.env, **env})
    with pytest.MonkeyPatch.context() as patch:
        for name in os.environ.keys() - variables.keys():
            patch.delenv(name)
        for name, value in variables.items():
            patch.setenv(name, value)
        patch.setenv("PATH", interpreters.search_path())
        facts = remembered_facts.load_facts(ROOT)
        selected = selection.selected_release(facts, Layout.of_checkout(ROOT))
        cell = cell_lookup.find_cell(facts, session, native_arch(), selected)
        venv = sample.envs / session.replace(".", "-")
        yield lambda *arguments: create_context(ROOT, facts, cell, arguments, venv)


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
