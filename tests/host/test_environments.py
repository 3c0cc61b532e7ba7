"""What an environment is made for, and who uses a tree."""

import shutil
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.support.refusals import refused
from torchmill.build.context import BuildTree
from torchmill.core.process import capture
from torchmill.host.environments import (
    STAMP_NAME,
    base_interpreter,
    hold_environment,
    in_environment,
    installed_distributions,
    make_environment,
    provide_environment,
    read_tree_user,
    tree_user,
)

INTERPRETER = """\
#!/bin/sh
# stands for an interpreter: python -m venv --clear [--without-pip] FOLDER
for folder; do :; done
rm -rf "$folder" && mkdir -p "$folder/bin" && touch "$folder/pyvenv.cfg" && ln -s /bin/echo "$folder/bin/python"
"""


def test_cells_of_one_name_do_not_share_an_environment_at_a_time(tmp_path: Path, interpreter: Path) -> None:
    venv = tmp_path / "wheel-3-10-cpu"
    with hold_environment(venv, "wheel-3.10-cpu"):
        provide_environment(venv, interpreter, "a", tmp_path / "empty", lambda *_: None)
        with hold_environment(tmp_path / "wheel-3-11-cpu", "wheel-3.11-cpu"):
            pass
        with (
            refused("cell-locked"),
            hold_environment(venv, "wheel-3.10-cpu"),
        ):
            pass


@pytest.fixture
def interpreter(tmp_path: Path) -> Path:
    program = tmp_path / "python"
    program.write_text(INTERPRETER)
    program.chmod(0o755)
    return program


def test_what_is_right_is_kept_and_anything_else_emptied(tmp_path: Path, interpreter: Path) -> None:
    venv = tmp_path / "venv"
    fresh(venv)
    left = venv / "left-by-another-release"
    asked: list[tuple[str, ...]] = []
    for wanted, survives in (("a", False), ("a", True), ("b", False)):
        left.touch()
        provide_environment(
            venv, interpreter, wanted, tmp_path / "empty", lambda *what: asked.append(what), "numpy", "wheel"
        )
        assert left.exists() == survives, wanted
        assert (venv / STAMP_NAME).read_text().split() == [wanted]
    assert asked == [("numpy", "wheel")] * 3, "what was taken out by hand comes back"


def fresh(venv: Path) -> Path:
    """Lay out an environment with a package in it, and return its site-packages."""
    (packages := venv / "lib/python3.10/site-packages").mkdir(parents=True)
    (packages / "numpy").mkdir()
    (venv / "bin").mkdir()
    (venv / "bin/python").symlink_to("/bin/echo")  # for which pip works
    return packages


@pytest.mark.parametrize("pip", ["/bin/false", "nowhere"])
def test_a_half_made_environment_is_made_again(tmp_path: Path, interpreter: Path, pip: str) -> None:
    """As it is where its making was killed, or the disk was full: once before, once after it was filled."""
    packages = fresh(tmp_path / "venv")
    for _ in range(2):
        (tmp_path / "venv/bin/python").unlink()
        (tmp_path / "venv/bin/python").symlink_to(pip)
        provide_environment(tmp_path / "venv", interpreter, "a", tmp_path / "empty", lambda *_: None)
        assert not packages.exists()
        assert (tmp_path / "venv/bin/python").readlink() == Path("/bin/echo")


@pytest.mark.parametrize("spoil", ["remove", "empty", "overwrite", "add"])
def test_an_environment_of_which_a_package_was_spoiled_is_made_again(
    tmp_path: Path, interpreter: Path, spoil: str
) -> None:
    venv = tmp_path / "venv"

    def install(*_: str) -> None:
        (packages := venv / "lib/python3.10/site-packages/numpy").mkdir(parents=True, exist_ok=True)
        if not (packages / "core.py").exists():
            (packages / "core.py").write_text("right")

    provide_environment(venv, interpreter, "a", tmp_path / "empty", install)
    (left := venv / "left").touch()
    module = venv / "lib/python3.10/site-packages/numpy/core.py"
    (module.parent / "__pycache__").mkdir()
    (module.parent / "__pycache__/core.pyc").write_text("compiled")
    provide_environment(venv, interpreter, "a", tmp_path / "empty", install)
    assert left.exists(), "importing a package does not spoil it"

    if spoil in ("remove", "add"):
        module.rename(module.with_name("lost.py")) if spoil == "remove" else module.with_name("new.py").touch()
    else:
        module.write_text({"empty": "", "overwrite": "wrong"}[spoil])
    provide_environment(venv, interpreter, "a", tmp_path / "empty", install)
    assert not left.exists()
    assert module.read_text() == "right"


def test_an_environment_without_its_configuration_names_an_interpreter(tmp_path: Path) -> None:
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert base_interpreter(tmp_path, version).exists()
    for text in ("", "home = /nowhere\n"):
        (tmp_path / "pyvenv.cfg").write_text(text)
        assert base_interpreter(tmp_path, version).exists()


def test_an_environment_has_a_pip_of_its_own(tmp_path: Path) -> None:
    """As it was made for another one, pip's program would name that; and the other may go while it is copied."""
    venv, empty = tmp_path / "venv", tmp_path / "empty"

    def run(argv: list[str]) -> None:
        capture(argv)
        if "--without-pip" in argv:
            shutil.rmtree(next(empty.glob("*/venv/lib/python*/site-packages/pip/_vendor")))

    for ways in ((), (), (run,)):
        make_environment(Path(sys.executable), venv, empty, *ways)
        said = capture([str(venv / "bin/pip"), "--version"])
        assert f" from {venv}/lib/" in said
        assert capture([str(in_environment(venv)), "-m", "pip", "--version"]) == said


def test_a_note_of_garbage_says_nothing(tmp_path: Path, interpreter: Path) -> None:
    """As a disk leaves it after a crash."""
    tree, venv = BuildTree(tmp_path), tmp_path / "venv"
    venv.mkdir()
    for note in (venv / STAMP_NAME, tree.interpreter_file, tree.key_file):
        note.write_bytes(b"\xff\xfe")
    assert installed_distributions(venv, "a") is None
    assert read_tree_user(tree.interpreter_file) is None
    assert not tree.is_prepared("a")
    provide_environment(venv, interpreter, "a", tmp_path / "empty", lambda *_: None)
    assert installed_distributions(venv, "a") == []


def test_a_failed_installation_is_not_taken_for_done(tmp_path: Path, interpreter: Path) -> None:
    def fails(*_: str) -> None:
        raise OSError

    with pytest.raises(OSError):  # noqa: PT011 (whatever pip's failure is)
        provide_environment(tmp_path / "venv", interpreter, "a", tmp_path / "empty", fails)
    assert installed_distributions(tmp_path / "venv", "a") is None


def test_another_package_makes_another_user_and_the_same_ones_the_same(tmp_path: Path) -> None:
    venv, link = tmp_path / "venv", tmp_path / "env"
    packages = venv / "lib" / "python3.10" / "site-packages"
    (packages / "numpy-1.26.3.dist-info").mkdir(parents=True)
    (venv / STAMP_NAME).write_text("a")
    first = tree_user(venv, Path(sys.executable), "a", link)
    assert first == tree_user(venv, Path(sys.executable), "a", link)
    (tmp_path / "user").write_text(first.to_json())
    assert read_tree_user(tmp_path / "user") == first
    assert sysconfig.get_path("include") in first.headers
    assert {str(link), str(venv), *first.headers} <= set(first.folders)
    (packages / "numpy-1.26.3.dist-info").rename(packages / "numpy-1.26.4.dist-info")
    assert tree_user(venv, Path(sys.executable), "a", link).identity != first.identity
    assert tree_user(tmp_path / "other", Path(sys.executable), "a", link).identity != first.identity


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"identity": "a"}', "null"])
def test_a_file_that_names_no_user(tmp_path: Path, text: str) -> None:
    (tmp_path / "user").write_text(text)
    assert read_tree_user(tmp_path / "user") is None
    assert read_tree_user(tmp_path / "missing") is None
