"""`invoke build --new-torch` on the sample: an index on which a new torch appears, or none."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.commands import run
from tests.support.documents import assert_fits
from tests.support.family import ERROR_LINE, add_package, copy_sample_facts, put_torch
from tests.support.index_server import Index, gone_index, serving
from tests.support.sampled import THIS, Sample
from torchmill.fetch import package_index
from torchmill.host.native import native_arch

SELECTED = '{"tag": "v1.1.0"}\n'
NO_CPU = '\n[[rule]]\nwhen = { variant = "cpu" }\nconflict = true\nreason = "it is all CUDA"\n'


class Asker:
    """A user's folder with the sample's facts, and an index that is asked."""

    def __init__(self, folder: Path, index: Index) -> None:
        self.home = folder / "home"
        self.home.mkdir()
        self.index = index
        self.configs = copy_sample_facts(folder)
        add_package(self.configs, index, "one")

    def ask(self, *words: str, **env: str) -> tuple[int, str, str]:
        variables = {
            "TORCHMILL_CONFIGS": str(self.configs),
            "PIP_INDEX_URL": self.index.url,
            **env,
        }
        done = run("invoke", "build", "--new-torch", *words, home=self.home, env=variables)
        return done.returncode, done.stdout, done.stderr

    def ask_json(self, *words: str) -> dict[str, Any]:
        code, out, err = self.ask("--dry-run", "--json", *words)
        assert code == 0, err
        document: dict[str, Any] = json.loads(out)
        assert_fits(document, "build")
        return document


@pytest.fixture
def asker(tmp_path: Path) -> Iterator[Asker]:
    with serving(Index()) as index:
        yield Asker(tmp_path, index)


def test_if_nothing_is_new_one_sentence_says_so(asker: Asker) -> None:
    put_torch(asker.index, "1.1.0")
    put_torch(asker.index, "1.2.0rc1")
    put_torch(asker.index, "1.3.0", yanked=True)
    code, out, _ = asker.ask()
    assert (code, out.count("\n")) == (0, 1)
    assert "has no tinytorch that is newer than 1.1.0" in out
    document = asker.ask_json()
    assert (document["new"], document["cells"], document["because"]) == (False, [], out.strip())
    assert not (asker.home / ".torchmill" / "new-torch").exists()


def test_a_torch_without_a_wheel_for_the_python_or_the_machine_waits(asker: Asker) -> None:
    put_torch(asker.index, "1.2.0", tag="cp38-cp38-win_amd64")
    code, out, _ = asker.ask()
    assert code == 0
    assert "nothing to build: tinytorch 1.2.0 is on" in out
    put_torch(asker.index, "1.2.0")
    code, out, _ = asker.ask("--python=3.8")
    assert code == 0
    assert f"for Python 3.8 on {native_arch()} (it has wheels for {THIS})" in out


def test_a_new_torch_is_drafted_into_the_state_and_named(asker: Asker) -> None:
    put_torch(asker.index, "1.2.0")
    before = {path: path.read_bytes() for path in asker.configs.rglob("*.toml")}
    document = asker.ask_json(f"--python={THIS},3.8")
    assert (document["new"], document["torch"], document["tag"]) == (True, "1.2.0", "v1.2.0")
    first, second = document["cells"]
    assert (first["identifier"], first["state"]) == (f"one-{THIS}-cpu", "pending")
    assert "nobody is known to have built tiny-one 0.3" in first["claim"]
    assert "beyond the bounds of its facts, <1.2" in first["claim"]
    assert (second["identifier"], second["state"]) == ("one-3.8-cpu", "refused")
    assert document["jobs"] == [{"python": THIS, "variant": "cpu", "sessions": f"one-{THIS}-cpu"}]
    drafted = Path(".torchmill/new-torch/facts/1.2.0/releases/1.2.0.toml")
    assert "drafted = true" in (asker.home / drafted).read_text("utf-8")
    assert (Path(document["facts"]) / "releases" / "1.2.0.toml").is_file()
    assert before == {path: path.read_bytes() for path in asker.configs.rglob("*.toml")}


def test_a_family_that_the_facts_rule_out_is_refused_with_the_reasons(asker: Asker) -> None:
    add_package(asker.configs, asker.index, "gpu", rule=NO_CPU)
    put_torch(asker.index, "1.2.0")
    code, _, err = asker.ask("tiny-gpu", "--yes")
    assert code == 3
    assert f"gpu-{THIS}-cpu: it is all CUDA" in err
    document = asker.ask_json("tiny-gpu")
    assert (document["new"], document["cells"][0]["state"]) == (False, "refused")


def test_a_variable_names_the_family_once(asker: Asker) -> None:
    add_package(asker.configs, asker.index, "two")
    put_torch(asker.index, "1.2.0")
    code, out, _ = asker.ask("--dry-run", TORCHMILL_FAMILY="tiny-two, Tiny_One")
    assert code == 0
    assert out.index(f"two-{THIS}-cpu") < out.index(f"one-{THIS}-cpu")


def test_an_index_that_does_not_answer_has_its_own_exit_code(tmp_path: Path) -> None:
    with gone_index() as index:
        code, _, err = Asker(tmp_path, index).ask()
    assert code == 6
    assert "error[index-unreadable]" in err


@pytest.mark.parametrize(
    ("words", "code", "error"),
    [
        (["tiny-none"], 2, "unknown-package"),
        (["tinytorch"], 2, "contradictory-options"),
        (["--torch=PyPI"], 2, "contradictory-options"),
        (["--ref=main"], 2, "contradictory-options"),
        (["--tag=v1.1.0"], 2, "torch-not-new"),
        (["--tag=v9.9.9"], 4, "unknown-release"),
    ],
)
def test_what_does_not_go_with_it_is_refused(
    asker: Asker, words: list[str], code: int, error: str
) -> None:
    put_torch(asker.index, "1.1.0")
    ended, _, err = asker.ask(*words)
    assert ended == code
    assert f"error[{error}]" in err


@pytest.mark.slow
def test_a_family_is_built_indexed_and_not_tried_twice(
    tmp_path: Path, envs: Path, cache: Path
) -> None:
    """Real invoke, nox and pip: one package compiles, one does not, and one needs that one."""
    sample = Sample(tmp_path, envs, cache)
    configs = copy_sample_facts(tmp_path)
    selection = sample.home / ".torchmill" / "selected.json"
    selection.parent.mkdir(parents=True)
    selection.write_text(SELECTED)
    index = Index()
    add_package(configs, index, "bad", line=ERROR_LINE)
    add_package(configs, index, "one")
    add_package(configs, index, "worse", imports='["tiny-bad"]')
    put_torch(index, "1.2.0")
    with serving(index):
        env = {
            **sample.env,
            "NOX_ENVDIR": str(envs),
            "PIP_EXTRA_INDEX_URL": package_index.configured_index(),
            "PIP_INDEX_URL": index.url,
        }
        words = ("build", "--new-torch", "--yes", "--json")
        done = run("invoke", *words, home=sample.home, env=env)
        assert done.returncode == 8, done.stderr
        document = json.loads(done.stdout)
        assert_fits(document, "build")
        states = {cell["package"]: cell["state"] for cell in document["cells"]}
        assert states == {"tiny-bad": "failed", "tiny-one": "built", "tiny-worse": "skipped"}
        bad, one, _ = document["cells"]
        assert bad["reason"].startswith("error[compile-failed]: ")
        assert ERROR_LINE in bad["reason"]
        assert Path(one["wheel"]).name.startswith("tiny_one-0.3+cpu.tinytorch1.2.0-")
        assert selection.read_text() == SELECTED, "other commands do not know the new torch"

        target = tmp_path / "installed"
        argv = [sys.executable, "-m", "pip", "install", "--quiet", f"--target={target}"]
        pages = Path(document["index"]).as_uri()
        extra = [f"--index-url={pages}/", f"--extra-index-url={index.url}", "tiny-one"]
        subprocess.run([*argv, *extra], check=True, capture_output=True)
        code = "import tiny_one, tinytorch; print(tinytorch.__version__)"
        shown = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONPATH": str(target)},
            capture_output=True,
            text=True,
            check=True,
        )
        assert shown.stdout == "1.2.0\n"

        again = run("invoke", "build", "--new-torch", "--yes", home=sample.home, env=env)
        assert again.returncode == 0
        assert again.stdout.count("\n") == 1
        assert "1 failed, 1 built, 1 skipped; `" in again.stdout
