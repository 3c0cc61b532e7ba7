"""Environments and their purposes, the users of trees, and shared tools."""

import errno
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path

import pytest
from press_support import compiled_wheels

from tests.support.machines import script
from tests.support.refusals import refused
from torchmill.cell.folders import BuildTree
from torchmill.core.process import capture
from torchmill.host.environments import (
    STAMP_NAME,
    base_interpreter,
    environment_python,
    hold_environment,
    installed_distributions,
    make_environment,
    pip_variables,
    provide_environment,
)
from torchmill.host.shared_tools import list_shared_tools, provide_shared_tools
from torchmill.host.tree_users import read_tree_user, tree_user

INTERPRETER = """\
#!/bin/sh
# replaces an interpreter: python -m venv --clear [--without-pip] FOLDER
for folder; do :; done
rm -rf "$folder" && mkdir -p "$folder/bin" || exit
touch "$folder/pyvenv.cfg" && ln -s /bin/echo "$folder/bin/python"
"""


def test_an_environment_is_held_by_one_cell_at_a_time(tmp_path: Path, interpreter: Path) -> None:
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


def test_an_environment_is_kept_only_for_its_purpose(tmp_path: Path, interpreter: Path) -> None:
    venv = tmp_path / "venv"
    make_environment_with_numpy(venv)
    leftover = venv / "left-by-another-release"
    installed: list[tuple[str, ...]] = []
    for purpose, survives in (("a", False), ("a", True), ("b", False)):
        leftover.touch()
        provide_environment(
            venv,
            interpreter,
            purpose,
            tmp_path / "empty",
            lambda *requirements: installed.append(requirements),
            "numpy",
            "wheel",
        )
        assert leftover.exists() == survives, purpose
        assert (venv / STAMP_NAME).read_text().split() == [purpose]
    assert installed == [("numpy", "wheel")] * 3, "packages that somebody removed come back"


def make_environment_with_numpy(venv: Path) -> Path:
    """Make an environment with a package, and return its site-packages."""
    packages = venv / "lib/python3.10/site-packages"
    packages.mkdir(parents=True)
    (packages / "numpy").mkdir()
    (venv / "bin").mkdir()
    (venv / "bin/python").symlink_to("/bin/echo")  # pip succeeds with it
    return packages


@pytest.mark.parametrize("pip", ["/bin/false", "nowhere"])
def test_a_half_made_environment_is_made_again(tmp_path: Path, interpreter: Path, pip: str) -> None:
    """Its making may have been killed before or after pip was installed, or by a full disk."""
    packages = make_environment_with_numpy(tmp_path / "venv")
    for _ in range(2):
        (tmp_path / "venv/bin/python").unlink()
        (tmp_path / "venv/bin/python").symlink_to(pip)
        provide_environment(
            tmp_path / "venv", interpreter, "a", tmp_path / "empty", lambda *_: None
        )
        assert not packages.exists()
        assert (tmp_path / "venv/bin/python").readlink() == Path("/bin/echo")


@pytest.mark.parametrize("spoil", ["remove", "empty", "overwrite", "add"])
def test_an_environment_with_a_damaged_package_is_made_again(
    tmp_path: Path, interpreter: Path, spoil: str
) -> None:
    venv = tmp_path / "venv"

    def install(*_: str) -> None:
        packages = venv / "lib/python3.10/site-packages/numpy"
        packages.mkdir(parents=True, exist_ok=True)
        if not (packages / "core.py").exists():
            (packages / "core.py").write_text("right")

    provide_environment(venv, interpreter, "a", tmp_path / "empty", install)
    leftover = venv / "left"
    leftover.touch()
    module = venv / "lib/python3.10/site-packages/numpy/core.py"
    (module.parent / "__pycache__").mkdir()
    (module.parent / "__pycache__/core.pyc").write_text("compiled")
    provide_environment(venv, interpreter, "a", tmp_path / "empty", install)
    assert leftover.exists(), "importing a package does not damage it"

    if spoil == "remove":
        module.rename(module.with_name("lost.py"))
    elif spoil == "add":
        module.with_name("new.py").touch()
    else:
        module.write_text({"empty": "", "overwrite": "wrong"}[spoil])
    provide_environment(venv, interpreter, "a", tmp_path / "empty", install)
    assert not leftover.exists()
    assert module.read_text() == "right"


def test_a_base_interpreter_is_found_without_configuration(tmp_path: Path) -> None:
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert base_interpreter(tmp_path, version).exists()
    for text in ("", "home = /nowhere\n"):
        (tmp_path / "pyvenv.cfg").write_text(text)
        assert base_interpreter(tmp_path, version).exists()


def test_a_base_interpreter_is_of_the_environments_version(tmp_path: Path) -> None:
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    home = tmp_path / "home"
    home.mkdir()
    script(home, "python3", "echo 3.99")
    (tmp_path / "pyvenv.cfg").write_text(f"home = {home}\n")
    assert base_interpreter(tmp_path, version).parent != home
    (home / "python3").unlink()
    (home / "python3").symlink_to(sys.executable)
    assert base_interpreter(tmp_path, version) == home / "python3"
    script(home, f"python{version}", "exit 1")
    assert base_interpreter(tmp_path, version) == home / f"python{version}"


def test_the_pip_script_imports_nothing_of_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    venv = tmp_path / "venv"
    make_environment(Path(sys.executable), venv, tmp_path / "store")
    (tmp_path / "logging.py").write_text("raise SystemExit(9)\n")
    monkeypatch.chdir(tmp_path)
    assert "pip" in capture([str(venv / "bin" / "pip"), "--version"])


def test_pip_installs_into_its_environment_despite_the_users_settings(tmp_path: Path) -> None:
    """Otherwise a build would lack its requirements, although pip reports them as installed."""
    package = tmp_path / "tree/tinytorch"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    wheel = compiled_wheels.raw_wheel(package.parent, "tinytorch", "1.0", tmp_path)
    venv = tmp_path / "venv"
    make_environment(Path(sys.executable), venv, tmp_path / "empty")
    pip = [str(environment_python(venv)), "-m", "pip", "install", "--no-deps", "--no-index"]
    elsewhere = tmp_path / "elsewhere"
    capture([*pip, "--target", str(elsewhere), str(wheel)])
    settings = tmp_path / "pip.conf"
    settings.write_text("[install]\nuser = true\n")
    hostile = {
        "PYTHONPATH": str(elsewhere),
        "PYTHONWARNINGS": "error",
        "PIP_CONFIG_FILE": str(settings),
        "PIP_TARGET": str(tmp_path / "target"),
        "PIP_PREFIX": str(tmp_path / "prefix"),
        "PIP_DRY_RUN": "1",
    }
    capture(
        [*pip, "--find-links", str(wheel.parent), "tinytorch"],
        env=pip_variables({**os.environ, **hostile}),
    )
    assert list(venv.glob("lib/python*/site-packages/tinytorch"))


def test_an_environment_has_its_own_pip(tmp_path: Path) -> None:
    """The copied pip must not name the environment it came from, which may be deleted meanwhile."""
    venv = tmp_path / "venv"
    empty = tmp_path / "empty"

    def run(argv: list[str]) -> None:
        capture(argv)
        if "--without-pip" in argv:
            shutil.rmtree(next(empty.glob("*/made/lib/python*/site-packages/pip/_vendor")))

    for runners in ((), (), (run,)):
        make_environment(Path(sys.executable), venv, empty, *runners)
        output = capture([str(venv / "bin/pip"), "--version"])
        assert f" from {venv}/lib/" in output
        assert capture([str(environment_python(venv)), "-m", "pip", "--version"]) == output


def test_garbage_in_state_files_is_ignored(tmp_path: Path, interpreter: Path) -> None:
    """A crash may leave garbage on the disk."""
    tree = BuildTree(tmp_path)
    venv = tmp_path / "venv"
    venv.mkdir()
    for note in (venv / STAMP_NAME, tree.interpreter_file, tree.key_file):
        note.write_bytes(b"\xff\xfe")
    assert installed_distributions(venv, "a") is None
    assert read_tree_user(tree.interpreter_file) is None
    provide_environment(venv, interpreter, "a", tmp_path / "empty", lambda *_: None)
    assert installed_distributions(venv, "a") == []


def test_a_failed_installation_leaves_no_stamp(tmp_path: Path, interpreter: Path) -> None:
    def fails(*_: str) -> None:
        raise OSError

    with pytest.raises(OSError):  # noqa: PT011 (whatever pip's failure is)
        provide_environment(tmp_path / "venv", interpreter, "a", tmp_path / "empty", fails)
    assert installed_distributions(tmp_path / "venv", "a") is None


def test_the_user_of_a_tree_is_identified_by_its_packages(tmp_path: Path) -> None:
    venv = tmp_path / "venv"
    link = tmp_path / "env"
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
def test_an_invalid_user_file_is_ignored(tmp_path: Path, text: str) -> None:
    (tmp_path / "user").write_text(text)
    assert read_tree_user(tmp_path / "user") is None
    assert read_tree_user(tmp_path / "missing") is None


PROGRAM = "#!/bin/sh\necho 'cmake version 3.31'\n"
SCRIPT = "#!/nowhere/bin/python\nfrom cmake import cmake\ncmake()\n"


def pip(calls: list[tuple[str, ...]]) -> Callable[..., None]:
    """Return a function that installs as pip does: scripts, a program, a library."""

    def install(*arguments: str) -> None:
        calls.append(arguments)
        prefix = Path(arguments[arguments.index("--prefix") + 1])
        package = prefix / "lib" / "python3.10" / "site-packages" / "cmake" / "data" / "bin"
        for file, text in {
            package / "cmake": PROGRAM,
            package.parents[2] / "mkl_static-2022.2.1.dist-info" / "METADATA": "",
            prefix / "bin" / "cmake": SCRIPT,
            prefix / "bin" / "f2py": SCRIPT,
            prefix / "bin" / "ninja": "\x7fELF",
            prefix / "lib" / "libmkl_core.a": "",
        }.items():
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
            file.chmod(0o755)

    return install


def test_shared_programs_start_without_the_python_that_installed_them(tmp_path: Path) -> None:
    calls: list[tuple[str, ...]] = []
    folder = tmp_path / "kit"
    provide_shared_tools(folder, ("cmake<4", "ninja"), pip(calls), tmp_path / "kept")
    (arguments,) = calls
    assert arguments[-2:] == ("cmake<4", "ninja")
    assert "--ignore-installed" in arguments, "packages of the environment do not count"
    assert sorted(path.name for path in (folder / "bin").iterdir()) == ["cmake", "ninja"]
    output = subprocess.run(
        [folder / "bin" / "cmake"], capture_output=True, text=True, check=True
    ).stdout
    assert output == "cmake version 3.31\n"
    assert (folder / "bin" / "cmake").resolve().is_relative_to(folder.resolve()), (
        "the link stays within the folder"
    )
    assert (folder / "lib" / "libmkl_core.a").is_file()
    assert list_shared_tools(folder) == ["mkl_static==2022.2.1"]


def test_shared_tools_are_installed_once(tmp_path: Path) -> None:
    """All trees share one installation: they link to it, or copy it from another disk."""
    calls: list[tuple[str, ...]] = []
    for name in ("kit", "kit", "other"):
        provide_shared_tools(tmp_path / name, ("cmake",), pip(calls), tmp_path / "kept")
    assert len(calls) == 1
    assert (tmp_path / "kit/lib/libmkl_core.a").samefile(tmp_path / "other/lib/libmkl_core.a")
    assert (tmp_path / "other/bin/cmake").resolve().is_relative_to(tmp_path / "other")
    provide_shared_tools(tmp_path / "newer", ("cmake>4",), pip(calls), tmp_path / "kept")
    assert len(calls) == 2, "other requirements have another folder"


def test_shared_tools_are_copied_from_another_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", refuse)
    calls: list[tuple[str, ...]] = []
    for name in ("kit", "other"):
        provide_shared_tools(tmp_path / name, ("cmake",), pip(calls), tmp_path / "kept")
    assert len(calls) == 1
    assert (tmp_path / "other/lib/libmkl_core.a").stat().st_nlink == 1


@pytest.mark.parametrize("gone", ["made/lib/libmkl_core.a", "made/bin/ninja", "whole", "made"])
def test_incomplete_cached_tools_are_installed_again(tmp_path: Path, gone: str) -> None:
    """Somebody may delete old files from the cache."""
    calls: list[tuple[str, ...]] = []
    provide_shared_tools(tmp_path / "kit", ("cmake",), pip(calls), tmp_path / "kept")
    part = next((tmp_path / "kept").glob(f"*/{gone}"))
    if part.is_dir():
        shutil.rmtree(part)
    else:
        part.unlink()
    for name in ("second", "third"):
        provide_shared_tools(tmp_path / name, ("cmake",), pip(calls), tmp_path / "kept")
        assert (tmp_path / name / "lib/libmkl_core.a").is_file()
        assert (tmp_path / name / "bin/ninja").is_file()
    assert len(calls) == 2


def test_scripts_that_pip_compiles_stop_nothing(tmp_path: Path) -> None:
    def install(*arguments: str) -> None:
        pip([])(*arguments)
        (Path(arguments[arguments.index("--prefix") + 1]) / "bin" / "__pycache__").mkdir()

    provide_shared_tools(tmp_path / "kit", ("cmake",), install, tmp_path / "kept")
    assert (tmp_path / "kit" / "bin" / "cmake").is_symlink()


def test_tools_deleted_while_they_are_linked_are_installed_in_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = os.link
    calls: list[tuple[str, ...]] = []

    def link_and_remove(file: str, target: str) -> None:
        link(file, target)
        shutil.rmtree(tmp_path / "kept", ignore_errors=True)

    monkeypatch.setattr(os, "link", link_and_remove)
    provide_shared_tools(tmp_path / "kit", ("cmake",), pip(calls), tmp_path / "kept")
    assert sorted(path.name for path in (tmp_path / "kit").rglob("*.a")) == ["libmkl_core.a"]
    assert sorted(path.name for path in (tmp_path / "kit/bin").iterdir()) == ["cmake", "ninja"]
    assert len(calls) == 2


def test_tools_are_installed_without_a_writable_cache(tmp_path: Path) -> None:
    """The user's home may be read-only."""
    calls: list[tuple[str, ...]] = []
    (tmp_path / "file").touch()
    provide_shared_tools(tmp_path / "kit", ("cmake",), pip(calls), tmp_path / "file" / "kept")
    assert len(calls) == 1
    assert list_shared_tools(tmp_path / "kit")


def test_tools_deleted_while_they_are_checked_are_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[str, ...]] = []
    provide_shared_tools(tmp_path / "kit", ("cmake",), pip(calls), tmp_path / "kept")
    look = os.lstat

    def look_late(
        path: str, **options: int | None
    ) -> os.stat_result:  # another run replaces the tools meanwhile
        if path.endswith("/made/lib/libmkl_core.a") and not (tmp_path / "gone").exists():
            os.replace(tmp_path / "kept", tmp_path / "gone")  # noqa: PTH105 - pathlib would look, too
        return look(path, **options)

    with monkeypatch.context() as patched:
        patched.setattr(os, "lstat", look_late)
        provide_shared_tools(tmp_path / "other", ("cmake",), pip(calls), tmp_path / "kept")
    assert list_shared_tools(tmp_path / "other") == list_shared_tools(tmp_path / "kit")


def test_half_installed_tools_are_not_used(tmp_path: Path) -> None:
    calls: list[tuple[str, ...]] = []

    def fails(*arguments: str) -> None:
        pip(calls)(*arguments)
        raise OSError

    with pytest.raises(OSError):  # noqa: PT011 (whatever pip's failure is)
        provide_shared_tools(tmp_path / "kit", ("cmake",), fails, tmp_path / "kept")
    assert not (tmp_path / "kit").exists()
    provide_shared_tools(tmp_path / "kit", ("cmake",), pip(calls), tmp_path / "kept")
    assert (tmp_path / "kit" / "bin" / "cmake").exists()


def test_a_package_without_shared_tools_has_an_empty_folder(tmp_path: Path) -> None:
    provide_shared_tools(tmp_path / "kit", (), pytest.fail, tmp_path / "kept")
    assert list((tmp_path / "kit" / "bin").iterdir()) == []
