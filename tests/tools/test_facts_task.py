"""`invoke facts` against an index on this machine."""

import tomllib
from pathlib import Path

import pytest

from tests.support.commands import run
from tests.support.index_server import MILLION, Index, gone_index, serving, wheel
from tools import upstream_check, upstream_draft
from tools.facts import FactsOptions, run_facts
from torchmill.config import facts_reader
from torchmill.config.facts import Facts
from torchmill.core import console
from torchmill.core.errors import ConfigError
from torchmill.core.paths import Layout

PLATFORM = "manylinux1_x86_64"
COMMIT = "1" * 40


def index_of(configs: Path) -> Index:
    """Return an index with one release of the small facts, whose file agrees with it."""
    index = Index()
    version_py = f"cuda = '10.2'\ngit_version = '{COMMIT}'\n"
    for python in ("39", "310"):
        content = wheel(
            "base", "1.0.0", version_py=version_py, libraries={"libtorch_cpu.so": MILLION}
        )
        name = f"base-1.0.0-cp{python}-cp{python}-{PLATFORM}.whl"
        index.add(name, content, **{"upload-time": "2020-01-02T00:00:00Z"})
    file = configs / "releases" / "1.0.0.toml"
    text = file.read_text("utf-8").replace(
        'source = "test"', 'date = "2020-01-02"\nsource = "test"', 1
    )
    text = text.replace('range = ">=10.2,<12"', 'range = ">=10.2,<12"\npypi = "10.2"')
    text += f'\n[base.wheels]\n{PLATFORM} = ["3.9", "3.10"]\n\n[base.sizes]\n"libtorch_cpu.so" = {MILLION}\n'
    file.write_text(text, encoding="utf-8")
    return index


def run_task(home: Path, configs: Path, index: Index, *arguments: str) -> tuple[int, str, str]:
    env = {"TORCHMILL_CONFIGS": str(configs), "PIP_INDEX_URL": index.url}
    result = run("invoke", "facts", *arguments, home=home, env=env)
    return result.returncode, result.stdout, result.stderr


def test_the_check_succeeds_only_if_all_differences_are_explained(
    tmp_path: Path, configs: Path
) -> None:
    index = index_of(configs)
    with serving(index):
        code, _, err = run_task(tmp_path, configs, index, "--check")
        assert (code, f"code {PLATFORM}" in err) == (2, True), (
            "code that was not read is a difference"
        )
        assert run_task(tmp_path, configs, index, "--code", "--write")[0] == 0
        code, out, _ = run_task(tmp_path, configs, index, "--check")
        assert (code, out.splitlines()[-3:]) == (
            0,
            [
                "addon: 0 wheels of 0 releases read",
                "base: 2 wheels of 1 releases read",
                "0 unexplained differences, 0 explained",
            ],
        )
        index.add(
            f"base-1.0.0-1-cp39-cp39-{PLATFORM}.whl",
            index.files[f"base-1.0.0-cp39-cp39-{PLATFORM}.whl"],
        )
        code, _, err = run_task(tmp_path, configs, index, "--check")
        assert code == 2
        assert "DIFFERENT  base 1.0.0: the wheels for 3.9 were built again" in err
        assert f"rebuild 1 {PLATFORM}: not explained" in err
        file = configs / "releases" / "1.0.0.toml"
        explanation = f'\n[base.explained]\n"rebuild 1 {PLATFORM}" = "tried twice"\n'
        file.write_text(file.read_text("utf-8") + explanation, encoding="utf-8")
        code, out, _ = run_task(tmp_path, configs, index, "--check", "--release=1.0.0")
        assert (code, out.splitlines()[-1]) == (0, "0 unexplained differences, 1 explained")


def test_a_new_release_is_drafted_and_then_known(tmp_path: Path, configs: Path) -> None:
    index = index_of(configs)
    with serving(index):
        code, out, _ = run_task(tmp_path, configs, index, "--new")
        assert (code, out.strip()) == (0, "every release on the index has its file")
        index.add(f"base-3.0.0-cp313-cp313-{PLATFORM}.whl", wheel("base", "3.0.0"))
        code, _, err = run_task(tmp_path, configs, index, "--check")
        assert code == 2
        assert "DIFFERENT  base 3.0.0: it is on PyPI, but has no file in releases/" in err
        code, out, _ = run_task(tmp_path, configs, index, "--new", "--write")
        assert code == 0
        assert (configs / "releases" / "3.0.0.toml").read_text("utf-8").strip() == out.strip()
        assert run_task(tmp_path, configs, index, "--code", "--write")[0] == 0
        assert run_task(tmp_path, configs, index, "--check")[0] == 0


PACKAGE = """\
name = "mine"
session = "mine"
after = "base"
pypi = "mine"
import_name = "mine"
memory_per_job = "1 GiB"
disk = "1 GiB"

[[release]]
version = "2.0"
torch = ">=1"
source = "test"
"""


def test_wheels_of_a_package_are_recorded_and_compared(tmp_path: Path, configs: Path) -> None:
    (configs / "packages" / "mine.toml").write_text(PACKAGE, encoding="utf-8")
    index = Index()
    first = "mine-2.0-cp310-cp310-manylinux1_x86_64.whl"
    index.add(first, wheel("mine", "2.0", requires=("base==1.0.0",)))
    index.add("mine-2.1.dev1-py3-none-any.whl", wheel("mine", "2.1.dev1"))
    with serving(index):
        code, out, _ = run_task(tmp_path, configs, index, "--wheels")
        assert (code, out.splitlines()) == (
            0,
            ["mine: 1 wheels on the index", "  nothing is recorded of PyPI", f"  new: {first}"],
        )
        assert run_task(tmp_path, configs, index, "--wheels", "--write")[0] == 0
        text = (configs / "package_wheels" / "mine.toml").read_text("utf-8")
        assert f'files = [\n    "{first}",\n]\ntorch = "==1.0.0"\ntold_by = "Requires-Dist"' in text
        code, out, _ = run_task(tmp_path, configs, index, "--wheels")
        assert (code, out.splitlines()) == (0, ["mine: 1 wheels on the index"])
        second = first.replace("cp310", "cp39")
        index.add(second, wheel("mine", "2.0", requires=("base==1.0.0",)))
        code, out, _ = run_task(tmp_path, configs, index, "--wheels")
        assert (code, out.splitlines()[-1]) == (0, f"  new: {second}")


def test_an_unreachable_index_has_its_own_exit_code(tmp_path: Path, configs: Path) -> None:
    with gone_index() as index:
        code, _, err = run_task(tmp_path, configs, index, "--check")
    assert code == 6
    assert "/simple/addon/ cannot be read" in err


def test_an_unknown_release_is_refused(tmp_path: Path, configs: Path) -> None:
    code, _, err = run_task(tmp_path, configs, Index(), "--check", "--release=7.7")
    assert code == 4
    assert "no release of base is called '7.7'" in err


def test_without_options_the_facts_are_counted(tmp_path: Path, configs: Path) -> None:
    code, out, _ = run_task(tmp_path, configs, Index())
    assert code == 0
    assert out.splitlines() == [
        "addon: 1 releases, 0 rules",
        "base: 2 releases, 5 rules",
        "3 CUDA toolkits, 0 compute capabilities, 0 causes of failures",
    ]


def test_writing_without_drafting_is_refused(small_facts: Facts, tmp_path: Path) -> None:
    options = FactsOptions(
        check=False,
        releases=(),
        new=False,
        code=False,
        wheels=False,
        write=True,
        reference=None,
    )
    with pytest.raises(ConfigError, match="give one of them"):
        run_facts(options, small_facts, Layout(tmp_path, tmp_path))


def test_of_one_release_only_its_wheels_are_read_and_those_that_may_go_with_it(
    tmp_path: Path, configs: Path
) -> None:
    index = index_of(configs)
    index.add(f"base-3.0.0-cp313-cp313-{PLATFORM}.whl", wheel("base", "3.0.0"))
    index.add(f"base-3.0.0-cp310-cp310-{PLATFORM}.whl", wheel("base", "3.0.0"), yanked=True)
    index.add(f"base-3.1.0-cp313-cp313-{PLATFORM}.whl", wheel("base", "3.1.0"))
    for version in ("0.0.9", "0.3.0"):
        content = wheel("addon", version, requires=["base==3.0.0"])
        index.add(f"addon-{version}-cp313-cp313-{PLATFORM}.whl", content)
    facts = facts_reader.read_facts(configs)
    with serving(index), console.show_progress() as bars:
        observed = upstream_check.observe_release(
            facts, "3.0.0", index.url, tmp_path / "members", bars
        )
    names = {package: [wheel.name for wheel in wheels] for package, wheels in observed.items()}
    assert names == {
        "base": [f"base-3.0.0-cp313-cp313-{PLATFORM}.whl"],
        "addon": [f"addon-0.3.0-cp313-cp313-{PLATFORM}.whl"],
    }
    draft = tomllib.loads(upstream_draft.draft_release(facts, observed, "3.0.0"))
    assert (draft["base"]["drafted"], draft["addon"]["version"]) == (True, "0.3.0")
