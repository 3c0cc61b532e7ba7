"""The real noxfile, through the real nox."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.commands import ROOT, environment, run
from tests.support.refusals import without_code
from torchmill.config.facts import Facts
from torchmill.config.release_lookup import find_release
from torchmill.config.versions import python_key
from torchmill.host import interpreters
from torchmill.host.native import native_arch
from torchmill.plan import matrix


def listed(home: Path, tag: str | None, *options: str) -> list[dict[str, object]]:
    done = run(
        "nox", "--list", "--json", *options, home=home, env={"TORCHMILL_TAG": tag} if tag else None
    )
    assert done.returncode == 0, done.stderr
    entries = json.loads(done.stdout)
    assert isinstance(entries, list)
    return entries


def test_a_selected_release_lists_exactly_its_cells(tmp_path: Path, shipped: Facts) -> None:
    native = native_arch()
    release = find_release(shipped, "torch", "v1.13.1")
    cells = matrix.buildable_cells(shipped, release, native)
    entries = {entry["session"]: entry for entry in listed(tmp_path, "v1.13.1")}
    assert set(entries) == {cell.build.identifier(native) for cell in cells}
    wheel = entries["wheel-3.10-cpu"]
    assert wheel["python"] == "3.10"
    cell = ["wheel", "torch", "cpu", "v1.13.1"]
    assert wheel["tags"] in [[*cell, standing] for standing in ("official", "tried", "untried")]
    assert entries["vision-3.10-cpu"]["description"] in {
        "torchvision 0.14.1",
        "torchvision 0.14.1, untried",
    }
    if native == "x86_64":
        assert entries["wheel-3.10-cu118"]["description"] == "torch 1.13.1, untried"
        assert entries["wheel-3.10-cu117"]["description"] == "torch 1.13.1"


def test_without_a_selection_the_newest_release_stands_for_a_cell(tmp_path: Path) -> None:
    entries = {entry["session"]: entry for entry in listed(tmp_path, None, "-t", "cpu")}
    assert str(entries["wheel-3.5-cpu"]["description"]).startswith("torch 1.5.1")
    assert str(entries["wheel-3.14t-cpu"]["description"]).startswith("torch 2.")


def test_plain_nox_says_what_to_do(tmp_path: Path) -> None:
    done = run("nox", home=tmp_path, env={"TORCHMILL_TAG": "v1.13.1"})
    assert done.returncode == 0
    assert "selected: v1.13.1" in done.stdout
    assert "nox -s wheel-" in done.stdout
    chosen = [
        line.split()[1]
        for line in run("nox", "-l", home=tmp_path).stdout.splitlines()
        if line[:2] == "* "
    ]
    assert chosen == ["help"]


def test_words_for_a_session_that_takes_none_are_refused(tmp_path: Path) -> None:
    for words, name in (((), "help"), (("-s", "lint"), "lint")):
        done = run("nox", *words, "--", "--jobs=2", home=tmp_path)
        assert done.returncode == 1
        assert f"{name} takes nothing after --: omit it, or name a build" in done.stderr


def test_what_is_made_of_a_wheel_is_told_and_not_listed(tmp_path: Path) -> None:
    listed = run("nox", "-l", home=tmp_path, env={"TORCHMILL_TAG": "v1.13.1"}).stdout
    for word in ("conda", "libtorch", "check", "speed"):
        assert listed.count(f"{word}-3.10-cpu") == 1


def test_without_a_release_the_newest_is_listed_and_all_are_run(tmp_path: Path) -> None:
    listed = run("nox", "-l", home=tmp_path).stdout
    assert "- wheel-3.12-cpu " in listed
    assert "wheel-3.8-cpu" not in listed
    assert "* wheel-3.8-cpu " in run("nox", "-l", "-t", "wheel", home=tmp_path).stdout
    fetched = tmp_path / ".torchmill" / "sources" / "torchvision"
    fetched.mkdir(parents=True)
    selected = run("nox", "-l", home=tmp_path, env={"TORCHMILL_TAG": "v1.13.1"}).stdout
    assert ("- vision-3.10-cpu " in selected, "audio-3.10-cpu" in selected) == (True, False)
    refused = run("nox", "-s", "wheel-3.8-cpu", "--envdir", str(tmp_path / "envs"), home=tmp_path)
    assert (
        "is not fetched" in refused.stdout + refused.stderr
        or "no usable CPython" in refused.stdout + refused.stderr
    )


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("wheel-3.10-cu12.1", "wheel-3.10-cu121?"),
        ("wheel-py310-cuda12.1", "wheel-3.10-cu121?"),
        ("wheel-3.10.4-12.1.1", "wheel-3.10-cu121?"),
        ("wheel-cp314t-cpu", "wheel-3.14t-cpu?"),
        ("whel-3.10-cpu", "wheel-3.10-cpu"),
        ("conda-3.10-cu12.1", "wheel-3.10-cu121?"),
        ("conda-vision-3.10-cu11.8", "vision-3.10-cu118?"),
        ("wheel-3.10-mps", "on a Mac, cpu includes MPS"),
    ],
)
def test_a_name_that_is_no_session_is_answered_with_the_nearest(
    name: str, nearest: str, tmp_path: Path
) -> None:
    for words, env in (
        (("-s", name), {}),
        ((f"--session={name}",), {}),
        ((), {"NOXSESSION": name}),
    ):
        done = run("nox", "--envdir", str(tmp_path / "envs"), *words, home=tmp_path, env=env)
        assert done.returncode == 1
        assert nearest in done.stderr
        assert "Traceback" not in done.stderr
    assert not (tmp_path / "envs").exists()


def test_no_environment_is_made_for_what_is_not_fetched(tmp_path: Path) -> None:
    this = "{}.{}".format(*sys.version_info)
    for env, message in (
        ({}, "no release is selected, and torch v"),
        ({"TORCHMILL_TAG": "v2.6.0"}, "torch v2.6.0 is not"),
    ):
        done = run(
            "nox",
            "--envdir",
            str(tmp_path / "envs"),
            "-s",
            f"wheel-{this}-cpu",
            home=tmp_path,
            env=env,
        )
        assert done.returncode == 1
        assert message in done.stderr
        assert "run `invoke fetch --tag v" in done.stderr
    assert not (tmp_path / "envs" / f"wheel-{this}-cpu".replace(".", "-")).exists()


def test_settings_of_an_environment_that_are_no_text_are_no_traceback(tmp_path: Path) -> None:
    this = "{}.{}".format(*sys.version_info)
    environment = tmp_path / f"wheel-{this}-cpu".replace(".", "-")
    environment.mkdir()
    (environment / "pyvenv.cfg").write_bytes(b"\x81\xff = \n")
    done = run("nox", "--envdir", str(tmp_path), "-s", f"wheel-{this}-cpu", home=tmp_path)
    assert "is not fetched" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_folder_of_environments_that_cannot_be_made_is_no_traceback(tmp_path: Path) -> None:
    """As in a checkout that is read-only."""
    (tmp_path / "file").touch()
    place = tmp_path / "file" / "envs"
    done = run("nox", "--envdir", str(place), "-t", "cpu", home=tmp_path / "home")
    assert done.returncode == 1
    assert without_code(done.stderr).startswith(f"error: {tmp_path}/file")
    assert "Not a directory" in done.stderr
    assert "`export NOX_ENVDIR=FOLDER`" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_old_python_is_told(tmp_path: Path) -> None:
    old = [
        version
        for version in interpreters.installed_interpreters()
        if python_key(version) < python_key("3.11")
    ]
    if not old:
        pytest.skip("no older Python is installed")
    for file in ("noxfile.py", "tasks.py"):
        python = interpreters.resolve_interpreter(old[-1])
        done = subprocess.run(
            [str(python), str(ROOT / file)],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 1
        assert done.stderr.startswith(
            f"error: torchmill needs Python 3.11 or newer to run, and this is {old[-1]}"
        )


def test_a_build_without_an_environment_of_its_own_is_refused(tmp_path: Path) -> None:
    this = "{}.{}".format(*sys.version_info)
    other_versions = [
        version for version in interpreters.installed_interpreters() if version != this
    ]
    for words in (["--no-venv"], *(["--force-python", version] for version in other_versions[-1:])):
        name = f"wheel-{this}-cpu"
        (tmp_path / name.replace(".", "-")).mkdir(exist_ok=True)
        done = run("nox", "--envdir", str(tmp_path), *words, "-s", name, home=tmp_path)
        assert done.returncode != 0
        assert f"needs its own environment, with Python {this}: leave out" in done.stderr
        assert "Traceback" not in done.stderr


def test_the_nox_script_finds_the_package_beside_the_noxfile(tmp_path: Path) -> None:
    script = Path(sys.executable).with_name("nox")
    if not script.exists():
        pytest.skip("nox is not installed as a script beside this interpreter")
    done = subprocess.run(
        [str(script), "-f", str(ROOT / "noxfile.py"), "--list"],
        cwd=tmp_path,
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "wheel-3.11-cpu" in done.stdout


def test_listing_needs_nothing_but_nox(tmp_path: Path) -> None:
    """A nox of its own, without git, psutil and rich, lists as well."""
    program = (
        "import sys\n"
        "for name in ('git', 'psutil', 'rich', 'invoke', 'auditwheel', 'elftools'):\n"
        "    sys.modules[name] = None\n"
        "from nox.__main__ import main\n"
        "sys.argv = ['nox', '--list']\n"
        "main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "wheel-3.11-cpu" in done.stdout


def test_a_mistake_in_the_facts_is_one_message(tmp_path: Path) -> None:
    configs = tmp_path / "configs"
    shutil.copytree(ROOT / "sample" / "build_configs", configs)
    file = configs / "releases" / "1.0.0.toml"
    file.write_text(file.read_text().replace('"3.10"', "3.10", 1))
    done = run("nox", "--list", home=tmp_path, env={"TORCHMILL_CONFIGS": str(configs)})
    assert done.returncode == 0, "the file is left out, and the others are listed"
    assert done.stderr.count("warning: ") == 1
    assert 'quote it, as in "3.10"' in done.stderr
    assert "Traceback" not in done.stderr


def test_a_build_of_what_was_not_fetched_says_how_to_fetch_it(tmp_path: Path) -> None:
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    env = {"TORCHMILL_CONFIGS": str(ROOT / "sample" / "build_configs"), "TORCHMILL_TAG": "v1.0.0"}
    done = run(
        "nox",
        "-s",
        f"vision-{version}-cpu",
        "--envdir",
        str(tmp_path / "envs"),
        home=tmp_path,
        env=env,
    )
    assert done.returncode == 1
    assert (
        "tinyvision v0.1.0 is not fetched: run `invoke fetch --tag v1.0.0 --package tinyvision`"
        in done.stderr
    )
    assert "Traceback" not in done.stderr


def test_an_unknown_session_is_an_error(tmp_path: Path) -> None:
    done = run("nox", "-s", "wheel-3.10-cu999", home=tmp_path)
    assert done.returncode != 0
    assert "wheel-3.10-cu999" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] in ([], ["cache"]), (
        "parsed facts, and nothing else"
    )


def test_a_missing_interpreter_is_told_with_its_cure(tmp_path: Path) -> None:
    """A folder of its own for everything that holds Pythons: what is left is the one that runs this."""
    env = {
        "TORCHMILL_CONFIGS": str(ROOT / "sample" / "build_configs"),
        "HOME": str(tmp_path),
        "PYENV_ROOT": str(tmp_path),
        "PATH": "/usr/bin:/bin",
    }
    done = run(
        "nox", "-s", "wheel-3.8-cpu", "--envdir", str(tmp_path / "envs"), home=tmp_path, env=env
    )
    assert done.returncode == 1
    assert "uv python install 3.8" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_broken_shim_is_named(tmp_path: Path) -> None:
    shims = tmp_path / "shims"
    shims.mkdir()
    shim = shims / "python3.8"
    shim.write_text("#!/bin/sh\necho 'pyenv: python3.8: command not found' >&2\nexit 127\n")
    shim.chmod(0o755)
    env = {
        "TORCHMILL_CONFIGS": str(ROOT / "sample" / "build_configs"),
        "HOME": str(tmp_path),
        "PYENV_ROOT": str(tmp_path),
        "PATH": f"{shims}:/usr/bin:/bin",
    }
    done = run(
        "nox", "-s", "wheel-3.8-cpu", "--envdir", str(tmp_path / "envs"), home=tmp_path, env=env
    )
    assert done.returncode == 1
    assert str(shim) in done.stderr
    assert "127" in done.stderr
    assert "Traceback" not in done.stderr


def test_what_libraries_log_is_not_shown(tmp_path: Path) -> None:
    """They log addresses with signatures, and headers with tokens."""
    code = (
        "import logging, nox.logger; nox.logger.setup_logging(color=False); import noxfile; "
        "logging.getLogger('urllib3.connectionpool').debug('GET /x?sig=SECRET'); "
        "logging.getLogger('botocore.auth').info('token SECRET'); "
        "logging.getLogger('urllib3').warning('a warning'); logging.getLogger('nox').info('of nox')"
    )
    env = environment(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=env, capture_output=True, text=True, check=True
    )
    assert "SECRET" not in done.stderr
    assert "nox > of nox" in done.stderr
    assert "a warning" in done.stderr


@pytest.mark.parametrize(
    "words", [("--tags=vision",), ("-s", "vision-3.12-cpu"), ("--session=vision-3.12-cpu",)]
)
def test_a_list_has_what_it_is_asked_for(words: tuple[str, ...], tmp_path: Path) -> None:
    listed = run("nox", "-l", *words, home=tmp_path)
    assert (listed.returncode, "* vision-3.12-cpu " in listed.stdout) == (0, True), listed.stderr


def test_a_session_that_the_environment_names_is_found_without_a_release(tmp_path: Path) -> None:
    done = run("nox", "-l", home=tmp_path, env={"NOXSESSION": "conda-3.12-cpu"})
    assert (done.returncode, "* conda-3.12-cpu " in done.stdout) == (0, True), done.stderr


def test_the_noxfile_asks_for_the_nox_that_is_installed_with_it() -> None:
    """Nox reads its bound from the noxfile, and pip from requirements.txt."""
    requirements = (ROOT / "requirements.txt").read_text("utf-8")
    required = re.search(r"^nox(\S+)", requirements, re.MULTILINE)
    needed = re.search(
        r'^nox\.needs_version = "(.+)"', (ROOT / "noxfile.py").read_text("utf-8"), re.MULTILINE
    )
    assert required is not None
    assert needed is not None
    assert needed[1] == required[1]
