"""What `invoke snippet` prints, taken at its word: by uv, Poetry, PDM and pip themselves."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from packaging.pylock import Pylock
from press_support.written_wheels import made

from tests.support.made_index import PIP, UV, Home, served
from tests.support.refusals import refused
from torchmill.commands import snippet
from torchmill.config import facts_reader
from torchmill.config.facts import Facts
from torchmill.core.paths import Layout

PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
CP = f"cp{sys.version_info.major}{sys.version_info.minor}"
HERE = {"x86_64": "linux/x86_64", "aarch64": "linux/aarch64"}.get(platform.machine(), "")
LINUX = ["linux/x86_64", "linux/aarch64"]
TAGS = {
    "linux/x86_64": f"{CP}-{CP}-manylinux_2_17_x86_64",
    "linux/aarch64": f"{CP}-{CP}-manylinux_2_17_aarch64",
    "macos/arm64": f"{CP}-{CP}-macosx_11_0_arm64",
}
RELEASE = f"""
    [base]
    version = "3.0.0"
    pythons = ["{PYTHON}"]
    arches = ["x86_64", "aarch64", "arm64"]
    source = "test"

    [base.cuda]
    range = ">=11.8"

    [base.cuda.official."11.8"]

    [base.wheels]
    manylinux1_x86_64 = ["{PYTHON}"]
    manylinux1_aarch64 = ["{PYTHON}"]

    [addon]
    version = "0.3.0"
    source = "test"
"""
OFFICIAL = """
    [[wheels]]
    name = "official-{{variant}}"
    url = "{url}/{{variant}}"
    packages = ["base"]
    release = ">=3"
    variants = ["cpu", "cuda"]
    arches = ["x86_64", "aarch64"]
    label = "+{{variant}}"
    source = "test"
"""

on_linux = pytest.mark.skipif(
    not HERE or sys.platform != "linux", reason="needs a Linux of the matrix"
)


@dataclass(frozen=True)
class Shop:
    """Wheels, an index of them that is served, and a folder in which projects are made."""

    home: Home
    url: str
    folder: Path

    def snippet(self, tool: str, *platforms: str, **options: Any) -> str:
        layout = Layout(self.home.path, self.home.path / "cache")
        return snippet.write_snippet(
            self.home.facts, layout, tool=tool, platform=list(platforms), **options
        )


def stocked(dist: Path, packages: Mapping[str, str], label: str, *platforms: str) -> list[str]:
    """Make wheels of some versions for platforms; the one on macOS has no label. Return their names."""
    return [
        made(
            dist,
            name,
            version if platform.startswith("macos") else f"{version}+{label}",
            TAGS[platform],
            requires=["base==3.0.0"] if name == "addon" else [],
            body=f"where = {platform + ' ' + label!r}\n",
        ).name
        for name, version in packages.items()
        for platform in platforms
    ]


BOTH = {"base": "3.0.0", "addon": "0.3.0"}


@pytest.fixture
def small_facts(configs: Path) -> Facts:
    """Return facts with a release for the Python that runs this, whose wheels need nothing from PyPI."""
    (configs / "releases" / "3.0.0.toml").write_text(RELEASE)
    return facts_reader.read_facts(configs)


@pytest.fixture
def shop(tmp_path: Path, small_facts: Facts) -> Iterator[Shop]:
    home = Home(tmp_path / "my checkout", small_facts)
    stocked(home.dist, BOTH, "cpu", *TAGS)
    home.index()
    with served(home.out) as port:
        yield Shop(home, f"http://127.0.0.1:{port}", tmp_path)


class Project:
    """A project that a snippet is put into, and an environment of its own."""

    def __init__(self, folder: Path, text: str, file: str = "pyproject.toml") -> None:
        self.folder = folder
        folder.mkdir()
        (folder / file).write_text(f"{text}\n", encoding="utf-8")
        subprocess.run([UV, "venv", "-q", "--python", sys.executable, folder / ".venv"], check=True)

    def run(self, *argv: str | Path) -> subprocess.CompletedProcess[str]:
        """Run a client; nothing is kept from one test to the next."""
        variables = {
            "VIRTUAL_ENV": str(self.folder / ".venv"),
            "UV_CACHE_DIR": str(self.folder.parent / "uv"),
            "POETRY_CACHE_DIR": str(self.folder.parent / "poetry"),
            "POETRY_NO_INTERACTION": "1",
            "PYTHON_KEYRING_BACKEND": "keyring.backends.null.Keyring",
            "PDM_CACHE_DIR": str(self.folder.parent / "pdm"),
            "PDM_LOG_DIR": str(self.folder.parent / "log"),
            "PDM_CHECK_UPDATE": "0",
            "HATCH_DATA_DIR": str(self.folder.parent / "hatch"),
            "HATCH_CACHE_DIR": str(self.folder.parent / "hatch"),
            "XDG_CONFIG_HOME": str(self.folder.parent / "config"),
        }
        env = {
            name: value for name, value in os.environ.items() if not name.startswith("UV_")
        } | variables
        return subprocess.run(
            argv, cwd=self.folder, env=env, capture_output=True, text=True, check=False
        )

    def must(self, *argv: str | Path) -> str:
        done = self.run(*argv)
        assert done.returncode == 0, f"{argv}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def imported(self) -> str:
        """Return what the installed packages say where they are from."""
        code = "import base, addon; print(base.__version__, base.where, addon.__version__, addon.where)"
        return self.must(self.folder / ".venv" / "bin" / "python", "-c", code).strip()

    def locked(self, file: str) -> list[str]:
        """Return the wheels that a lock file names, with their hashes beside them."""
        lines = (self.folder / file).read_text(encoding="utf-8").splitlines()
        return [line.replace("%2B", "+") for line in lines if ".whl" in line and "sha256:" in line]


def holds(lines: Sequence[str], *names: str) -> bool:
    return all(any(name in line for line in lines) for name in names)


INSTALLED = f"3.0.0+cpu {HERE} cpu 0.3.0+cpu {HERE} cpu"
LABELLED = [
    f"{name}-{version}+cpu-{TAGS[platform]}.whl"
    for name, version in BOTH.items()
    for platform in LINUX
]
PLAIN = [f"{name}-{version}-{TAGS['macos/arm64']}.whl" for name, version in BOTH.items()]


@on_linux
def test_uv_locks_for_all_platforms_and_installs_here(shop: Shop) -> None:
    project = Project(shop.folder / "p", shop.snippet("uv", index=shop.url))
    project.must(UV, "lock")
    assert holds(project.locked("uv.lock"), *LABELLED, *PLAIN)
    project.must(UV, "sync", "--locked")
    assert project.imported() == INSTALLED


MINE = """\
[project]
name = "mine"  # not my-project
version = "1"
requires-python = ">=3.8"
dependencies = ["base>=2", "addon"]

[tool.uv]
package = false
[tool.poetry]
package-mode = false
[tool.pdm]
distribution = false
"""


@on_linux
@pytest.mark.parametrize(
    ("tool", "commands", "lock"),
    [
        ("uv", [["lock"], ["sync", "--locked"]], "uv.lock"),
        ("poetry", [["lock"], ["install"]], "poetry.lock"),
        ("pdm", [["lock"], ["sync"]], "pdm.lock"),
    ],
)
def test_a_project_of_ones_own_is_edited_and_taken(
    shop: Shop, clients: Path, tool: str, commands: list[list[str]], lock: str
) -> None:
    project = Project(shop.folder / "p", MINE)
    file = project.folder / "pyproject.toml"
    for _ in range(2):
        printed = shop.snippet(tool, *LINUX, index=shop.url, into=str(file))
    assert "has all of it already" in printed
    assert f"{tool} lock" in printed
    assert 'name = "mine"  # not my-project' in file.read_text()
    for command in commands:
        project.must(UV if tool == "uv" else clients / tool, *command)
    assert holds(project.locked(lock), *LABELLED)
    assert project.imported() == INSTALLED


@on_linux
def test_uv_takes_an_extra_of_a_project_of_ones_own(shop: Shop) -> None:
    project = Project(shop.folder / "p", MINE)
    shop.snippet(
        "uv", HERE, index=shop.url, into=str(project.folder / "pyproject.toml"), extra="gpu"
    )
    project.must(UV, "sync", "--extra", "gpu")
    assert project.imported() == INSTALLED


@on_linux
def test_uv_takes_a_folder_and_the_official_index_beside_it(shop: Shop, configs: Path) -> None:
    (other,) = (platform for platform in LINUX if platform != HERE)
    official = Home(shop.folder / "official", shop.home.facts)
    official_names = stocked(official.dist, {"base": "3.0.0"}, "cpu", other)
    official.index()
    own_home = Home(shop.folder / "ours", shop.home.facts)
    stocked(own_home.dist, {"base": "3.0.0"}, "cpu", HERE)
    with served(official.out) as port:
        url = f"http://127.0.0.1:{port}"
        (configs / "indexes.toml").write_text(OFFICIAL.format(url=url))
        text = Shop(Home(own_home.path, facts_reader.read_facts(configs)), "", shop.folder).snippet(
            "uv", *LINUX
        )
        project = Project(shop.folder / "p", text)
        project.must(UV, "sync")
    assert f'registry = "{url}/cpu"' in (project.folder / "uv.lock").read_text()
    assert holds(project.locked("uv.lock"), *official_names)
    assert f"# {other}: wheels of {url}/cpu" in text
    installed = project.must(
        project.folder / ".venv/bin/python", "-c", "import base; print(base.where)"
    )
    assert installed.strip() == f"{HERE} cpu"


@on_linux
def test_uv_fails_to_lock_where_a_wheel_has_gone(shop: Shop) -> None:
    text = shop.snippet("uv", *LINUX, index=str(shop.home.dist))
    (gone,) = (platform for platform in LINUX if platform != HERE)
    (shop.home.dist / f"base-3.0.0+cpu-{TAGS[gone]}.whl").unlink()
    done = Project(shop.folder / "p", text).run(UV, "lock")
    assert done.returncode != 0
    assert gone.partition("/")[2] in done.stderr


@on_linux
def test_uv_takes_wheels_by_their_address_and_refuses_another_hash(shop: Shop) -> None:
    text = shop.snippet("uv", *LINUX, direct=True, index=shop.url)
    project = Project(shop.folder / "p", text)
    project.must(UV, "sync")
    assert project.imported() == INSTALLED
    spoiled = Project(shop.folder / "q", re.sub("sha256=[0-9a-f]{8}", "sha256=00000000", text))
    done = spoiled.run(UV, "sync")
    assert done.returncode != 0
    assert "Hash mismatch" in done.stderr


@on_linux
def test_uv_keeps_two_variants_apart(shop: Shop) -> None:
    stocked(shop.home.dist, BOTH, "cu118", HERE)
    text = shop.snippet("uv", HERE, variant=["cpu", "cu118"])
    project = Project(shop.folder / "p", text)
    project.must(UV, "sync", "--extra", "cu118")
    assert project.imported() == INSTALLED.replace("cpu", "cu118")
    project.must(UV, "sync", "--extra", "cpu")
    assert project.imported() == INSTALLED
    assert project.run(UV, "sync", "--extra", "cpu", "--extra", "cu118").returncode != 0


@on_linux
def test_poetry_locks_for_all_platforms_and_installs_here(shop: Shop, clients: Path) -> None:
    project = Project(shop.folder / "p", shop.snippet("poetry", index=shop.url))
    project.must(clients / "poetry", "lock")
    assert holds(project.locked("poetry.lock"), *LABELLED, *PLAIN)
    project.must(clients / "poetry", "install")
    assert project.imported() == INSTALLED


@on_linux
def test_poetry_takes_the_wheels_of_a_folder_by_their_address(shop: Shop, clients: Path) -> None:
    project = Project(shop.folder / "p", shop.snippet("poetry", *LINUX))
    project.must(clients / "poetry", "lock")
    assert holds(project.locked("poetry.lock"), *LABELLED)


@on_linux
def test_pdm_locks_one_pin_for_both_machines_and_installs_here(shop: Shop, clients: Path) -> None:
    project = Project(shop.folder / "p", shop.snippet("pdm", *LINUX, index=str(shop.home.out)))
    project.must(clients / "pdm", "lock")
    assert holds(project.locked("pdm.lock"), *LABELLED)
    project.must(clients / "pdm", "sync")
    assert project.imported() == INSTALLED


@on_linux
def test_pdm_locks_for_one_platform_after_the_other_where_versions_differ(
    shop: Shop, clients: Path
) -> None:
    text = shop.snippet("pdm", HERE, "macos/arm64", package=["base"])
    project = Project(shop.folder / "p", text)
    for line in re.findall(r"^# {5}pdm (.*)$", text, re.MULTILINE):
        project.must(clients / "pdm", *line.split())
    lines = project.locked("pdm.lock")
    assert holds(lines, f"base-3.0.0+cpu-{TAGS[HERE]}.whl", PLAIN[0])
    installed = project.must(
        project.folder / ".venv/bin/python", "-c", "import base; print(base.where)"
    )
    assert installed.strip() == f"{HERE} cpu"


@on_linux
@pytest.mark.parametrize("index", ["folder", "served", "by address"])
def test_pip_installs_from_the_requirements(shop: Shop, index: str) -> None:
    chosen = {"index": shop.url} if index == "served" else {"direct": index == "by address"}
    project = Project(shop.folder / "p", shop.snippet("pip", *TAGS, **chosen), "requirements.txt")
    project.must(
        *PIP, "--python", project.folder / ".venv", "install", "-q", "-r", "requirements.txt"
    )
    assert project.imported() == INSTALLED


@on_linux
@pytest.mark.parametrize("index", ["folder", "served", "by address"])
def test_hatch_makes_an_environment(shop: Shop, hatch: Path, index: str) -> None:
    chosen = {"index": shop.url} if index == "served" else {"direct": index == "by address"}
    project = Project(shop.folder / "p", shop.snippet("hatch", *TAGS, **chosen))
    code = "import base, addon; print(base.__version__, base.where, addon.__version__, addon.where)"
    done = project.must(hatch, "run", "python", "-c", code)
    assert done.splitlines()[-1] == INSTALLED


def lock_words(project: Project) -> list[str]:
    """Return the words of pip that install a lock file into the environment of a project."""
    venv = str(project.folder / ".venv")
    return ["--python", venv, "install", "-q", "-r", "pylock.toml"]


@on_linux
@pytest.mark.parametrize("index", ["folder", "served"])
def test_pip_and_uv_install_from_a_lock_file(shop: Shop, index: str) -> None:
    chosen = {"index": shop.url} if index == "served" else {}
    text = shop.snippet("pylock", HERE, **chosen)
    lock = Pylock.from_dict(tomllib.loads(text))
    for package in lock.packages:
        assert package.wheels is not None
        for wheel in package.wheels:
            assert wheel.filename in LABELLED
            assert wheel.hashes["sha256"]
    assert [package.name for package in lock.packages] == ["addon", "base"]
    for client in ("pip", "uv"):
        project = Project(shop.folder / f"project-{client}", text, "pylock.toml")
        if client == "pip":
            project.must(*PIP, *lock_words(project))
        else:
            project.must(UV, "pip", "sync", "pylock.toml")
        assert project.imported() == INSTALLED


@on_linux
def test_a_lock_file_refuses_another_wheel(shop: Shop) -> None:
    text = shop.snippet("pylock", HERE, index=shop.url)
    stocked(shop.home.dist, {"base": "3.0.0"}, "cpu", HERE)
    wheel = next(iter(shop.home.out.glob(f"cpu/base-3.0.0+cpu-{TAGS[HERE]}.whl")))
    content = wheel.read_bytes()
    wheel.unlink()  # it is another name of the file in dist/
    wheel.write_bytes(content + b"more")
    project = Project(shop.folder / "p", text, "pylock.toml")
    done = project.run(*PIP, *lock_words(project))
    assert done.returncode != 0
    assert "hash" in done.stderr.lower()


@on_linux
def test_a_project_that_cannot_be_locked_is_refused(shop: Shop) -> None:
    for path in shop.home.out.glob("cpu/base-3.0.0*"):
        path.unlink()
    with refused("cannot-lock"):
        shop.snippet("pylock", HERE, index=str(shop.home.out))


def test_the_metadata_of_one_version_must_be_equal(shop: Shop) -> None:
    made(shop.home.dist, "base", "3.0.0+cpu", TAGS["linux/aarch64"], requires=["addon"])
    assert "# base 3.0.0+cpu: " in shop.snippet("uv")


def test_a_login_does_not_get_into_the_snippet(shop: Shop) -> None:
    secret = shop.url.replace("://", "://me:s3cret@")
    text = shop.snippet("poetry", index=secret)
    assert "s3cret" not in text
    assert f'url = "{shop.url}"' in text


def test_a_label_of_its_own_is_of_the_variant_that_the_manifest_tells(shop: Shop) -> None:
    home = Home(shop.folder / "labelled", shop.home.facts)
    wheel = made(home.dist, "base", "3.0.0+git0123456", TAGS["linux/aarch64"])
    digest = re.search(
        "sha256=([0-9a-f]+)", Shop(home, "", shop.folder).snippet("pip", direct=True)
    )
    assert digest is not None
    wheel.with_name(f"{wheel.name}.json").write_text(
        f'{{"sha256": "{digest[1]}", "toolkit": "11.8"}}'
    )
    assert "base (cu118) for linux/aarch64" in Shop(home, "", shop.folder).snippet("pip")


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"tool": ""}, "unknown-tool"),
        ({"tool": "rye"}, "unknown-tool"),
        ({"platform": ["linux/riscv64"]}, "unknown-platform"),
        ({"package": ["text"]}, "unknown-package"),
        ({"tag": "v9"}, "unknown-release"),
        ({"tag": "v2.0.0"}, "no-such-wheel"),
        ({"variant": ["cu118"]}, "no-such-wheel"),
        ({"tool": "pdm", "variant": ["cpu", "cu118"]}, "several-variants"),
        ({"tool": "pip", "into": "requirements.txt"}, "contradictory-options"),
        ({"extra": "gpu"}, "contradictory-options"),
        ({"into": "pyproject.toml", "extra": "a b"}, "invalid-extra"),
        ({"into": "nowhere/pyproject.toml"}, "no-project-file"),
        ({"index": "/nowhere"}, "no-wheels"),
        ({"index": "http://me:s3cret@127.0.0.1:9/x/"}, "index-unreadable"),
        ({"index": "http://[::1/"}, "invalid-url"),
        ({"index": "ftp://me:s3cret@x/"}, "invalid-url"),
        ({"index": "https://x/simple?s3cret=1"}, "invalid-url"),
        ({"index": "file://host/x"}, "invalid-url"),
    ],
)
def test_what_is_impossible_is_refused_without_passwords(
    shop: Shop, options: dict[str, Any], code: str
) -> None:
    all_options = {"tool": "uv"} | options
    with refused(code) as caught:
        shop.snippet(all_options.pop("tool"), *all_options.pop("platform", ()), **all_options)
    assert "s3cret" not in str(caught.value)


def test_a_platform_without_a_wheel_says_which_cell_to_build(shop: Shop) -> None:
    (shop.home.dist / f"base-3.0.0+cpu-{TAGS['linux/aarch64']}.whl").unlink()
    suffix = "" if HERE == "linux/aarch64" else "-aarch64"
    with refused("no-wheel") as caught:
        shop.snippet("uv", *LINUX)
    assert f"build with `nox -s wheel-{PYTHON}-cpu{suffix} " in str(caught.value)


def test_several_variants_have_to_be_chosen_from(shop: Shop) -> None:
    stocked(shop.home.dist, {"base": "3.0.0"}, "cu118", "linux/x86_64")
    with refused("several-variants"):
        shop.snippet("pip")


def test_only_what_there_are_such_wheels_of_is_told(shop: Shop) -> None:
    stocked(shop.home.dist, {"base": "3.0.0"}, "cu118", "linux/x86_64")
    (shop.home.dist / "other-1.0-py3-none-any.whl").write_bytes(b"nobody reads this")
    text = shop.snippet("pip", variant=["cu118"])
    assert re.findall("^[a-z].*", text, re.MULTILINE) == ["base==3.0.0+cu118"]


def test_an_extension_against_the_official_base_is_told_with_that_base(
    shop: Shop, configs: Path
) -> None:
    """As it is built by `--torch PyPI`: in dist/ there is no wheel of the base."""
    (configs / "indexes.toml").write_text(OFFICIAL.format(url="https://official.example"))
    home = Home(shop.folder / "extension", facts_reader.read_facts(configs))
    made(home.dist, "addon", "0.3.0+cpu.base3.0.0", TAGS["linux/x86_64"], requires=["base==3.0.0"])
    text = Shop(home, "", shop.folder).snippet("pip", "linux/x86_64")
    assert re.findall("^[a-z].*", text, re.MULTILINE) == [
        "base==3.0.0+cpu",
        "addon==0.3.0+cpu.base3.0.0",
    ]
    assert "https://official.example/cpu" in text


def test_official_wheels_are_told_without_any_of_ours(shop: Shop, configs: Path) -> None:
    (configs / "indexes.toml").write_text(OFFICIAL.format(url="https://official.example"))
    empty = Home(shop.folder / "empty", facts_reader.read_facts(configs))
    with refused("no-wheels") as caught:
        Shop(empty, "", shop.folder).snippet("pip", "linux/x86_64", tag="v3.0.0")
    assert "official ones as cpu, cu118: name one with --variant" in str(caught.value)
    text = Shop(empty, "", shop.folder).snippet(
        "pip", "linux/x86_64", tag="v3.0.0", variant=["cu118"]
    )
    assert re.findall("^[a-z].*", text, re.MULTILINE) == ["base==3.0.0+cu118"]


def test_a_project_gets_what_it_names_and_no_other_package(shop: Shop) -> None:
    file = shop.folder / "pyproject.toml"
    file.write_text(MINE.replace(', "addon"', ""))
    shop.snippet("uv", *LINUX, index=shop.url, into=str(file))
    assert "addon" not in file.read_text()
    assert '"base==3.0.0+cpu"' in file.read_text()


def test_nothing_and_nothing_of_ours(shop: Shop) -> None:
    empty = Home(shop.folder / "empty", shop.home.facts)
    with refused("no-wheels"):
        Shop(empty, "", shop.folder).snippet("uv")
    made(empty.dist, "other")
    with refused("no-wheels"):
        Shop(empty, "", shop.folder).snippet("uv")
    with refused("no-wheels"):
        shop.snippet("uv", index=f"{shop.url}/{quote('nothing here')}")
