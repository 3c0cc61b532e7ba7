"""The upstream in miniature: always the same commits, and it keeps the contract of the real ones."""

import json
import os
import subprocess
import sys
import tomllib
import venv
from collections.abc import Mapping
from pathlib import Path

import pytest

from sample import upstream
from torchmill.config import facts_reader

SAMPLE = Path(upstream.__file__).parent
CONFIGS = SAMPLE / "build_configs"
PATCH = CONFIGS / "patches" / "tinytorch" / "limits-header.patch"
RELEASES = [
    (package, table["version"], table["commit"])
    for path in sorted((CONFIGS / "releases").glob("*.toml"))
    for package, table in tomllib.loads(path.read_text(encoding="utf-8")).items()
]


def run(*argv: str | Path, cwd: Path, env: Mapping[str, str] | None = None) -> str:
    """Return what the program printed; fail with all of it when the program does."""
    done = subprocess.run(argv, cwd=cwd, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{argv}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def refused(*argv: str | Path, cwd: Path, env: Mapping[str, str] | None = None) -> str:
    """Return what the program complained of, which must have failed."""
    done = subprocess.run(argv, cwd=cwd, env=env, capture_output=True, text=True, check=False)
    assert done.returncode != 0, done.stdout
    return done.stderr


def references(directory: Path) -> dict[str, str]:
    return {path.name: run("git", "show-ref", cwd=path) for path in (directory / "tiny").iterdir()}


@pytest.fixture(scope="module")
def origin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("origin")
    upstream.create(directory)
    return directory


@pytest.fixture(scope="module")
def environment(origin: Path) -> dict[str, str]:
    """Return an environment whose git finds github.com in `origin`, and that switches nothing."""
    settings = {
        f"url.{origin.as_uri()}/.insteadOf": "https://github.com/",
        "protocol.file.allow": "always",
    }
    unwanted = ("USE_", "BUILD_", "CMAKE_", "PYTORCH_", "MAX_JOBS", "GIT_")
    variables = {name: value for name, value in os.environ.items() if not name.startswith(unwanted)}
    variables["GIT_CONFIG_COUNT"] = str(len(settings))
    for number, (key, value) in enumerate(settings.items()):
        variables |= {f"GIT_CONFIG_KEY_{number}": key, f"GIT_CONFIG_VALUE_{number}": value}
    return variables


def clone(name: str, tag: str, target: Path, environment: Mapping[str, str], *options: str) -> Path:
    url = f"https://github.com/tiny/{name}.git"
    run("git", "clone", "--branch", tag, *options, url, target, cwd=target.parent, env=environment)
    return target


def test_creates_the_same_commits_every_time(origin: Path, tmp_path: Path) -> None:
    upstream.create(tmp_path)
    first = references(tmp_path)
    upstream.create(tmp_path)
    assert first == references(tmp_path) == references(origin)


def test_the_users_git_settings_change_no_commit(
    origin: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / ".gitconfig").write_text("[core]\n\tautocrlf = true\n[init]\n\tdefaultBranch = trunk\n")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("GIT_AUTHOR_DATE", "2001-01-01T00:00:00Z")
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    upstream.create(tmp_path / "made")
    monkeypatch.delenv("GIT_DIR")
    assert references(tmp_path / "made") == references(origin)


@pytest.mark.parametrize(("package", "version", "commit"), RELEASES)
def test_recorded_commits_are_the_created_ones(
    origin: Path, package: str, version: str, commit: str
) -> None:
    assert upstream.commit_of(origin, package, f"v{version}") == commit


def test_facts_load() -> None:
    loaded = facts_reader.read_facts(CONFIGS)
    assert {name: len(releases) for name, releases in loaded.releases.items()} == {
        "tinytorch": 2,
        "tinyvision": 2,
    }


@pytest.mark.parametrize(("tag", "kind"), [("v1.0.0", "commit"), ("v1.1.0", "tag")])
def test_has_both_kinds_of_tag(origin: Path, tag: str, kind: str) -> None:
    repository = origin / "tiny" / "tinytorch.git"
    assert run("git", "cat-file", "-t", tag, cwd=repository).strip() == kind


def test_recursive_clone_brings_the_nested_submodule(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    old = clone("tinytorch", "v1.0.0", tmp_path / "old", environment, "--recursive")
    new = clone("tinytorch", "v1.1.0", tmp_path / "new", environment, "--recursive")
    header = Path("third_party/tinymath/third_party/tinybits/include/tinybits/power_of_two.h")
    assert (old / header).is_file()
    status = "git", "submodule", "status", "third_party/tinymath"
    assert run(*status, cwd=old).split()[0] != run(*status, cwd=new).split()[0]


@pytest.mark.parametrize(
    ("options", "missing"),
    [((), "third_party/tinymath"), (("update",), "third_party/tinymath/third_party/tinybits")],
    ids=["no submodule", "only the outer submodule"],
)
def test_refuses_to_build_without_submodules(
    tmp_path: Path, environment: dict[str, str], options: tuple[str, ...], missing: str
) -> None:
    tree = clone("tinytorch", "v1.0.0", tmp_path / "tree", environment)
    if options:
        run("git", "submodule", *options, "--init", cwd=tree, env=environment)
    words = refused(sys.executable, "setup.py", "bdist_wheel", cwd=tree, env=environment)
    assert f"Could not find CMakeLists.txt in {tree / missing}\n" in words
    assert "git submodule update --init --recursive" in words


def test_setup_py_of_the_newer_release_names_the_way_to_build(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    tree = clone("tinytorch", "v1.1.0", tmp_path / "tree", environment)
    words = refused(sys.executable, "setup.py", "bdist_wheel", cwd=tree, env=environment)
    assert "scikit-build-core" in words
    assert "python -m build --wheel" in words


def compiles(tree: Path) -> bool:
    """Say whether the file with the forgotten header compiles."""
    argv = ["c++", "-std=c++17", "-fsyntax-only", "-Iinclude", "src/smallest.cpp"]
    return subprocess.run(argv, cwd=tree, capture_output=True, check=False).returncode == 0


@pytest.mark.skipif(sys.platform != "linux", reason="other standard libraries may include <limits>")
def test_the_patch_is_needed_and_enough(tmp_path: Path, environment: dict[str, str]) -> None:
    tree = clone("tinytorch", "v1.0.0", tmp_path / "tree", environment)
    assert not compiles(tree)
    run("git", "apply", PATCH, cwd=tree)
    assert compiles(tree)
    assert compiles(clone("tinytorch", "v1.1.0", tmp_path / "fixed", environment))


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the Python of an environment that has what setup.py needs, from PyPI."""
    folder = tmp_path_factory.mktemp("python")
    venv.create(folder, with_pip=True)
    requirements = ["setuptools<81", "wheel", "cmake>=3.18", "ninja"]
    path = folder / "bin" / "python"
    run(path, "-m", "pip", "install", "--quiet", *requirements, cwd=folder)
    return path


def wheel_of(tree: Path, python: Path, environment: Mapping[str, str], **variables: str) -> Path:
    """Build a wheel as a person would, and install it."""
    path = f"{python.parent}{os.pathsep}{environment['PATH']}"
    built = set((tree / "dist").glob("*"))
    run(python, "setup.py", "bdist_wheel", cwd=tree, env={**environment, **variables, "PATH": path})
    (wheel,) = set((tree / "dist").glob("*")) - built
    run(python, "-m", "pip", "install", "--no-deps", "--force-reinstall", wheel, cwd=tree)
    return wheel


@pytest.mark.long
def test_builds_by_hand(tmp_path: Path, environment: dict[str, str], python: Path) -> None:
    vision = clone("tinyvision", "v0.1.0", tmp_path / "vision", environment)
    assert "built against an installed tinytorch" in refused(
        python, "setup.py", "bdist_wheel", cwd=vision
    )

    torch = clone("tinytorch", "v1.0.0", tmp_path / "torch", environment, "--recursive")
    run("git", "apply", PATCH, cwd=torch)
    version = {"PYTORCH_BUILD_VERSION": "1.0.0+cpu", "PYTORCH_BUILD_NUMBER": "1", "MAX_JOBS": "2"}
    wheel = wheel_of(torch, python, environment, **version, USE_TINY_FAST="0")
    assert wheel.name.startswith(
        f"tinytorch-1.0.0+cpu-cp{sys.version_info[0]}{sys.version_info[1]}-"
    )
    run(torch / "build" / "tiny_test", cwd=tmp_path)
    wheel_of(vision, python, environment, BUILD_VERSION="0.1.0+cpu", PYTORCH_VERSION="1.0.0+cpu")

    script = (
        "import json, tinytorch as t, tinyvision as v, importlib.metadata as m;"
        "print(json.dumps([t.add(1.5, 2), v.scale(3.0, 2), t.fit([0, 1, 2], [1, 2, 5], 2), t.config(),"
        " t.__version__, t.git_version, v.__version__, m.requires('tinyvision')]))"
    )
    added, scaled, coefficients, *rest = json.loads(run(python, "-c", script, cwd=tmp_path))
    assert (added, scaled) == (3.5, 6.0)
    assert coefficients == pytest.approx([1, 0, 1])
    assert rest == [
        {"USE_TINY_FAST": False, "USE_OPENMP": False, "BUILD_TEST": True},
        "1.0.0+cpu",
        run("git", "rev-parse", "HEAD", cwd=torch).strip(),
        "0.1.0+cpu",
        ["tinytorch==1.0.0+cpu"],
    ]

    # The trap: where build/ survives, switches that changed are ignored.
    again = wheel_of(
        torch, python, environment, **version | {"PYTORCH_BUILD_NUMBER": "2"}, USE_TINY_FAST="1"
    )
    assert again.name.startswith("tinytorch-1.0.0+cpu.post2-")
    switch = "import tinytorch; print(tinytorch.config()['USE_TINY_FAST'])"
    assert run(python, "-c", switch, cwd=tmp_path).strip() == "False"
