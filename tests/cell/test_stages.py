"""One tree for all interpreters: who waits, what is compiled again, and which trees are kept."""

import re
import shutil
import signal
import subprocess
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from guard_support.guards import until
from millguard.timeline import UnitRun, parse_record

from tests.support.contexts import HOST, job
from tests.support.sampled import Sample, fetched
from torchmill.cell.compile_stage import empty_old_trees
from torchmill.cell.session_environment import find_links
from torchmill.config.facts import Facts
from torchmill.core.locks import LOCK_FILE, wait_for_folder
from torchmill.host import interpreters
from torchmill.plan.build_options import Options

PYTHONS = [
    one
    for one in interpreters.installed_interpreters()
    if one in {f"3.{minor}" for minor in range(8, 15)}
]
OF_PYTHON = {"python/module.cpp", "python/values.cpp"}
# Compiles, but `sort.cpp` only when nobody holds it.
COMPILER = """\
#!/bin/sh
case "$*" in *src/sort.cpp*)
  case "$*" in *" -E "*) ;; *)
    while [ -e '{folder}/hold' ]; do touch '{folder}/held'; sleep 0.05; done
  esac
esac
exec c++ "$@"
"""


def tinynum(folder: Path, version: str) -> None:
    """Write a wheel that brings a header, as numpy does."""
    info = f"tinynum-{version}.dist-info"
    members = {
        "tinynum/__init__.py": "",
        "tinynum/version.h": f'#define TINYNUM_VERSION "tinynum {version}"\n',
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: tinynum\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: a test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{name},,\n" for name in (*members, f"{info}/RECORD"))
    with zipfile.ZipFile(folder / f"tinynum-{version}-py3-none-any.whl", "w") as wheel:
        for name, text in {**members, f"{info}/RECORD": record}.items():
            wheel.writestr(name, text)


class Pair:
    """The sample for two Pythons, each with a package of its own version, and a compiler that can be held."""

    def __init__(self, sample: Sample, first: str, second: str) -> None:
        self.sample, self.first, self.second = sample, first, second
        self.hold, self.held = sample.folder / "hold", sample.folder / "held"
        compiler = sample.folder / "compiler" / "c++"
        compiler.parent.mkdir()
        compiler.write_text(COMPILER.format(folder=sample.folder))
        compiler.chmod(0o755)
        sample.env |= {"CXX": str(compiler), "PIP_FIND_LINKS": str(sample.folder)}
        for python, version in ((first, "1.0"), (second, "2.0")):
            tinynum(sample.folder, version)
            when = f'when = {{ python = "=={python}" }}'
            sample.add_rule(f'{when}\nreason = "its numbers"\nrequires = ["tinynum=={version}"]')

    @property
    def objects(self) -> set[str]:
        trees = self.sample.home / ".torchmill" / "trees"
        return {path.name for path in trees.rglob("*.o") if not path.name.startswith("CMake")}

    def wheel(self, python: str) -> zipfile.ZipFile:
        tag = f"cp{python.replace('.', '')}"
        (name,) = [one for one in self.sample.wheels() if f"-{tag}-" in one]
        return zipfile.ZipFile(self.sample.home / "dist" / name)

    def manifest(self, python: str) -> dict[str, Any]:
        with self.wheel(python) as wheel:
            return self.sample.manifest(Path(str(wheel.filename)).name)

    def compiled(self, python: str) -> set[str]:
        """Return the sources that a compiler was really started for in the last build."""
        log = self.sample.home / ".torchmill" / "logs" / f"v1.0.0-wheel-{python}-cpu.timeline.jsonl"
        records = [parse_record(line) for line in log.read_text(encoding="utf-8").splitlines()]
        ran = (one.key for one in records if isinstance(one, UnitRun) and one.family == "c++")
        return {key.split("|")[1] for key in ran}


@pytest.fixture
def pair(tmp_path: Path, upstream: Path) -> Iterator[Pair]:
    if len(PYTHONS) < 2:
        pytest.skip("needs two Pythons")
    yield Pair(fetched(tmp_path, upstream, tmp_path / "envs"), PYTHONS[0], PYTHONS[-1])
    shutil.rmtree(tmp_path / "envs", ignore_errors=True)


def said_until(running: subprocess.Popen[str], text: str) -> None:
    """Read what a run says until a line has a text in it."""
    assert running.stdout is not None
    lines = []
    for line in running.stdout:
        lines.append(line)
        if text in line:
            return
    pytest.fail("".join(lines))


@pytest.mark.long
def test_at_the_same_time_and_one_of_them_stopped(pair: Pair) -> None:
    """The second waits for the first, goes on where that was stopped, and leaves it little to do."""
    first, second = (f"wheel-{python}-cpu" for python in (pair.first, pair.second))
    pair.hold.touch()
    with pair.sample.start("-s", first) as one:
        try:
            until(pair.held.exists, "the first build", 600)
            with pair.sample.start("-s", second) as other:
                said_until(
                    other, f"waiting for {first}, which is building in the tree that both share"
                )
                until(lambda: len(pair.objects) > 10, "more of the first build", 600)
                one.send_signal(signal.SIGINT)
                one.communicate(timeout=300)
                before = pair.objects
                pair.hold.unlink()
                said, _ = other.communicate(timeout=600)
        finally:
            pair.hold.unlink(missing_ok=True)
            one.kill()
    assert one.returncode != 0
    assert other.returncode == 0, said
    assert "reusing " in said
    again = {f"{Path(source).name}.o" for source in pair.compiled(pair.second) - OF_PYTHON}
    assert not again & before, "nothing is compiled twice that depends on no Python"
    done = pair.sample.nox("-s", first)
    assert done.returncode == 0, done.stdout + done.stderr
    assert pair.compiled(pair.first) <= OF_PYTHON
    assert pair.manifest(pair.first)["edges"] == len(OF_PYTHON) + 1, "and their link"
    see_what_is_in_the_wheels(pair)


def see_what_is_in_the_wheels(pair: Pair) -> None:
    """Look for one library in both, and in each the extension of its own Python and package."""
    libraries = set()
    for python, version in ((pair.first, "1.0"), (pair.second, "2.0")):
        with pair.wheel(python) as wheel:
            libraries |= {
                wheel.read(one) for one in wheel.namelist() if one.endswith("/libtiny.so")
            }
            (extension,) = [one for one in wheel.namelist() if "/_C." in one]
            assert f".cpython-{python.replace('.', '')}-" in extension
            found = re.findall(rb"tinynum [\d.]+", wheel.read(extension))
            assert set(found) == {f"tinynum {version}".encode()}
    assert len(libraries) == 1


def test_two_trees_of_a_family_are_kept_and_all_while_somebody_works(
    small_facts: Facts, tmp_path: Path
) -> None:
    begun = job(small_facts, tmp_path, HOST)
    folders = {name: begun.tree.folder.with_name(f"wheel-cpu-{name * 8}") for name in "abcd"}
    foreign = [
        begun.tree.folder.with_name(name) for name in ("wheel-3.9-cpu", "wheel-cu118-aaaaaaaa")
    ]
    for folder in (*folders.values(), *foreign):
        (folder / "source").mkdir(parents=True)
        with wait_for_folder(folder, "somebody", pytest.fail):
            pass
    noted: list[str] = []
    with wait_for_folder(
        foreign[0], "somebody else", pytest.fail
    ):  # who packs needs the kit of a tree
        empty_old_trees(begun, noted.append)
    assert noted == []
    (folders["a"] / ("x" * 250)).touch()  # cannot be moved: there is no room for a longer name
    empty_old_trees(begun, noted.append)
    left = [name for name, folder in folders.items() if (folder / "source").exists()]
    assert left == ["d"], "the one that was used last"
    assert noted == [f"emptied {folders[name]}, which had been unused the longest" for name in "cb"]
    assert all((folder / "source").exists() for folder in foreign)
    assert all((folder / LOCK_FILE).exists() for folder in folders.values())


def test_pip_looks_among_our_wheels_for_ours_alone(small_facts: Facts, tmp_path: Path) -> None:
    base = job(small_facts, tmp_path, HOST)
    assert find_links(base) == []
    dependent = replace(
        base,
        plan=replace(base.plan, wheel=replace(base.plan.wheel, torch="base==1.0.0+cpu")),
    )
    assert find_links(dependent) == ["--find-links", str(base.layout.dist)]
    assert find_links(replace(dependent, options=Options(torch="PyPI"))) == []
