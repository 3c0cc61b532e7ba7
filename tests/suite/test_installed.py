"""torchmill as pip installs it: built, installed, run in folders that are no checkout, with facts of their own."""

import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.support import stand_in_engine
from tests.support.commands import PROGRAMS, ROOT, environment
from torchmill.core.task_lines import STAGES

pytestmark = pytest.mark.slow
TASKS = {"build", "doctor", "fetch", "plan"}
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"


@pytest.fixture(scope="module")
def delivered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the wheels of torchmill, millguard and millpress, and torchmill's sdist."""
    out = tmp_path_factory.mktemp("delivered")
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out)]
    for words in (
        [str(ROOT)],
        ["--wheel", str(ROOT / "packages" / "millguard")],
        ["--wheel", str(ROOT / "packages" / "millpress")],
    ):
        done = subprocess.run([*build, *words], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    return out


@pytest.fixture(scope="module")
def programs(delivered: Path) -> Path:
    """Return the programs of an environment with those wheels; what they require is this environment's."""
    place = delivered / "venv"
    venv.create(place, with_pip=False, symlinks=True)
    site = site_packages(place / "bin")
    required = f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n"
    (site / "required.pth").write_text(required, encoding="utf-8")
    argv = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        str(place / "bin" / "python"),
        "install",
        "--no-deps",
        *map(str, delivered.glob("*.whl")),
    ]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (delivered / "on_path").mkdir()
    (delivered / "on_path" / "torchmill").symlink_to(place / "bin" / "torchmill")
    return place / "bin"


def run(
    programs: Path,
    home: Path,
    *words: str,
    user: Path | None = None,
    variables: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a command in a folder as somebody would who has no checkout; the user's cache is in `user`, or in `home`.

    PATH has no more than a link to `torchmill`, as `uv tool install` and pipx make it. `variables` are added.
    """
    unset = {"TORCHMILL_HOME", "PYTHONPATH", *PROGRAMS}
    env = {name: value for name, value in environment(user or home).items() if name not in unset}
    env |= variables or {}
    env |= {"PATH": f"{on_path(programs)}{os.pathsep}{env['PATH']}", "PWD": str(home)}
    program, *rest = words
    installed = program == "torchmill"
    argv = (
        [str(on_path(programs) / program), *rest]
        if installed
        else [str(programs / "python"), "-m", program, *rest]
    )
    return subprocess.run(argv, cwd=home, env=env, capture_output=True, text=True, check=False)


def site_packages(programs: Path) -> Path:
    """Return the folder into which pip installed the wheels."""
    return programs.parent / "lib" / f"python{PYTHON}" / "site-packages"


def on_path(programs: Path) -> Path:
    """Return the folder with the link to `torchmill`."""
    return programs.parent.parent / "on_path"


def test_the_wheel_has_the_suite_and_the_sdist_its_tests(delivered: Path) -> None:
    (wheel,), (sdist,) = delivered.glob("torchmill-*.whl"), delivered.glob("*.tar.gz")
    with zipfile.ZipFile(wheel) as archive:
        names = {*archive.namelist()}
        version = wheel.name.split("-")[1]
        metadata = archive.read(f"torchmill-{version}.dist-info/METADATA").decode()
    inside = ("noxfile.py", "build_configs/packages/torch.toml", "sample/upstream.py")
    assert {f"torchmill_suite/{name}" for name in inside} <= names
    assert {"torchmill/py.typed", "torchmill/cell/containers/inside.sh"} <= names
    assert not [name for name in names if "__pycache__" in name]
    assert {name.partition("/")[0] for name in names} == {
        "torchmill",
        "torchmill_suite",
        f"torchmill-{version}.dist-info",
    }
    for once in ("/cell/pipeline.py", "/wheels.yml", "/gate.c", "/noxfile.py"):
        copies = [name for name in names if name.endswith(once)]
        expected = {"/gate.c": 0, "/noxfile.py": 2}  # the second one is for `torchmill init`
        assert len(copies) == expected.get(once, 1), copies
    assert all(
        f"Requires-Dist: {name}" in metadata for name in ("nox", "invoke", "psutil", "gitpython")
    )
    with tarfile.open(sdist) as archive:
        assert f"torchmill-{version}/tests/conftest.py" in archive.getnames()


def test_the_package_can_be_imported_where_it_is_installed(
    programs: Path, delivered: Path, tmp_path: Path
) -> None:
    (wheel,) = delivered.glob("torchmill-*.whl")
    code = "import torchmill, torchmill.core.paths as p; print(torchmill.__version__, p.CHECKOUT)"
    done = subprocess.run(
        [str(programs / "python"), "-P", "-c", code],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=False,
    )
    version, suite = done.stdout.split()
    assert version == wheel.name.split("-")[1], done.stderr
    assert suite == str(site_packages(programs) / "torchmill_suite")


def test_a_container_gets_the_folders_of_the_wheels(programs: Path, tmp_path: Path) -> None:
    arch = platform.machine()
    stand_in_engine.podman(tmp_path, arch, arch)
    env = {
        "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}",
        "TORCHMILL_IMAGE": f"debian-{arch}",
    }
    session = f"wheel-3.12-cpu-{arch}"
    words = ("torchmill", "plan", session, "--tag=v2.4.1", "--all")
    (tmp_path / "home").mkdir()
    planned = run(programs, tmp_path / "home", *words, variables=env)
    site = site_packages(programs)
    mounted = dict(re.findall(r"source=([^,]+),target=/suite/([^,]+),readonly", planned.stdout))
    infos = [path.name for path in site.glob("*mill*.dist-info")]
    assert len(infos) == 3
    names = ["torchmill", "torchmill_suite", "millguard", "millpress", *infos]
    assert mounted == {str(site / name): name for name in names}, planned.stderr
    assert "/suite/torchmill/cell/containers/inside.sh" in planned.stdout


def test_an_image_gets_the_libraries_as_the_wheels_that_they_are_installed_from(
    programs: Path, delivered: Path, tmp_path: Path
) -> None:
    words = ("--kind=builder", "--tag=v2.4.1", f"--into={tmp_path / 'image'}")
    done = run(programs, tmp_path, "torchmill", "image", *words)
    assert done.returncode == 0, done.stderr
    suite = tmp_path / "image" / "suite"
    assert (suite / "torchmill" / "cell" / "pipeline.py").is_file()
    assert (suite / "noxfile.py").is_file()
    requirements = (suite / "requirements.txt").read_text("utf-8").splitlines()
    assert not [line for line in requirements if "extra" in line]
    assert [line for line in requirements if line.startswith("nox>=")]
    for name in ("millguard", "millpress"):
        (built,) = delivered.glob(f"{name}-*.whl")
        assert f"./packages/{built.name}" in requirements
        with (
            zipfile.ZipFile(built) as archive,
            zipfile.ZipFile(suite / "packages" / built.name) as copy,
        ):
            assert {*copy.namelist()} == {*archive.namelist()}
            record = f"{'-'.join(built.name.split('-')[:2])}.dist-info/RECORD"
            for member in {*archive.namelist()} - {record}:
                assert copy.read(member) == archive.read(member), member
    argv = [sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--target"]
    installed = subprocess.run(
        [*argv, str(tmp_path / "site"), *map(str, (suite / "packages").glob("*.whl"))],
        capture_output=True,
        text=True,
        check=False,
    )
    assert installed.returncode == 0, installed.stderr


def test_the_digest_of_the_code_that_packs_follows_the_installed_code(
    programs: Path, tmp_path: Path
) -> None:
    site = tmp_path / "site"
    for name in ("torchmill", "millpress"):
        shutil.copytree(site_packages(programs) / name, site / name)
    code = (
        "import sys; from pathlib import Path; from torchmill.core.stat_cache import *;"
        "places = (package_folder('millpress'), 'wheel/sbom.py');"
        "print(digest_code(StatCache(Path(sys.argv[1])), *places))"
    )

    def digest() -> str:
        argv = [str(programs / "python"), "-P", "-c", code, str(tmp_path / "cache")]
        env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(site)}
        done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    digests = [digest()]
    for file in (site / "millpress" / "wheel_writer.py", site / "torchmill" / "wheel" / "sbom.py"):
        file.write_text(f"{file.read_text('utf-8')}# changed\n", encoding="utf-8")
        digests.append(digest())
    assert len({*digests}) == 3


def test_the_installed_command_names_itself_in_all_that_it_says(
    programs: Path, tmp_path: Path
) -> None:
    for words in ([], ["--help"], ["--list"], ["help"]):
        listed = run(programs, tmp_path, "torchmill", *words)
        assert (listed.returncode, listed.stderr) == (0, "")
        assert [line[:-1] for line in listed.stdout.splitlines() if line.endswith(":")][
            : len(STAGES)
        ] == [*STAGES]
        assert "  torchmill nox -s demo\n" in listed.stdout
    assert [*tmp_path.iterdir()] == [], "to list tasks nothing is needed of a folder"
    begun = run(programs, tmp_path, "torchmill", "init", "--github")
    assert "\nnext: torchmill build --tag v2.4.1 --python 3.12\n" in begun.stdout
    schema = Path("build_configs", "schemas", "package.schema.json")
    (tmp_path / schema).write_text("of an older torchmill")
    run(programs, tmp_path, "torchmill", "init")
    assert (tmp_path / schema).read_bytes() == (ROOT / schema).read_bytes()
    (tmp_path / "build.log").write_text("error: the flux capacitor is not charged\nFAILED: a.o\n")
    unknown = run(programs, tmp_path, "torchmill", "diagnose", "build.log").stdout
    assert [
        page
        for page in re.findall(r"\S+/diagnose-a-failed-build\.md", unknown)
        if Path(page).is_file()
    ], unknown
    spoken = [
        listed,
        run(programs, tmp_path, "torchmill", "build", "--help"),
        run(programs, tmp_path, "torchmill", "buidl"),
        run(programs, tmp_path, "torchmill", "clean"),
        run(programs, tmp_path, "torchmill", "plan", "wheel-3.12-cu121", "--tag=v2.4.1"),
        run(programs, tmp_path, "torchmill", "doctor", "wheel-3.12-cpu", "--tag=v2.4.1", "--json"),
        run(programs, tmp_path, "torchmill", "nox"),
        run(programs, tmp_path, "torchmill", "nox", "-s", "wheel-3.12-cpuu"),
        run(programs, tmp_path, "torchmill", "nox", "-s", f"wheel-{PYTHON}-cpu", "--", "--helpp"),
    ]
    for done in spoken:
        output = done.stdout + done.stderr
        assert "torchmill " in output, done.args
        assert (
            re.findall(
                r"(?:invoke (?:fetch|build|status|deps|--list)|(?<!torchmill )nox -[sl]).*", output
            )
            == []
        )


@pytest.mark.long
def test_tasks_and_sessions_work_for_the_folder_they_are_called_in(
    programs: Path, tmp_path: Path
) -> None:
    listed = run(programs, tmp_path, "torchmill")
    assert {
        line.split()[0] for line in listed.stdout.splitlines() if line[:2] == "  " and line.split()
    } >= TASKS
    planned = run(
        programs,
        tmp_path,
        "torchmill",
        "build",
        "--dry-run",
        "--tag=v2.4.1",
        "--python=3.12",
        "--cuda=cpu",
    )
    assert (planned.returncode, "torchmill fetch --tag v2.4.1" in planned.stdout) == (0, True), (
        planned.stderr
    )
    refused = run(
        programs, tmp_path, "torchmill", "build", "--yes", "--tag=v2.4.1", "--mirror=file:///absent"
    )
    assert refused.returncode != 0
    assert "$ torchmill fetch --tag v2.4.1 --mirror=file:///absent" in refused.stdout, (
        "steps find the suite"
    )
    assert "there is no" not in refused.stderr
    sessions = run(programs, tmp_path, "torchmill", "nox", "-l")
    assert "- wheel-3.12-cpu " in sessions.stdout
    assert {path.name for path in tmp_path.iterdir()} <= {".torchmill", ".nox", "cache", "dist"}


@pytest.mark.long
def test_the_demo_runs_from_an_installed_suite(programs: Path, tmp_path: Path) -> None:
    done = run(programs, tmp_path, "torchmill", "nox", "-s", "demo")
    assert done.returncode == 0, done.stdout + done.stderr
    (variables,) = re.findall(r"only after this one: (export .*)", done.stderr + done.stdout)
    (advice,) = re.findall(r"projects: (torchmill snippet .*)", done.stdout)
    env = {"PATH": f"{on_path(programs)}{os.pathsep}{os.environ['PATH']}", "HOME": str(tmp_path)}
    argv = ["sh", "-c", f"{variables}; {advice}"]
    snippet = subprocess.run(
        argv, cwd=tmp_path, env=env, capture_output=True, text=True, check=False
    )
    assert (snippet.returncode, "tinytorch==1.0.0+cpu" in snippet.stdout) == (0, True), (
        snippet.stderr
    )
    home = tmp_path / ".torchmill" / "demo" / "home"
    assert len([*home.glob("dist/*.whl")]) == 2
    indexed = run(programs, home, "torchmill", "index", user=tmp_path)
    assert (indexed.returncode, (home / "index" / "tinytorch" / "index.html").is_file()) == (
        0,
        True,
    ), indexed.stderr


@pytest.mark.long
def test_a_project_begins_with_one_command_and_keeps_its_own_facts(
    programs: Path, tmp_path: Path
) -> None:
    begun = run(programs, tmp_path, "torchmill", "init", "--github")
    assert begun.returncode == 0, begun.stderr
    assert (tmp_path / ".github" / "workflows" / "wheels.yml").is_file()
    (tmp_path / "requirements.txt").write_text("torchmill==0.1.0\n")
    assert (
        "requirements.txt: exists, left as it is"
        in run(programs, tmp_path, "torchmill", "init").stdout
    )
    assert (tmp_path / "requirements.txt").read_text() == "torchmill==0.1.0\n"
    mistaken = run(programs, tmp_path, "torchmill", "init", "--gitlab")
    assert (mistaken.returncode, "--gitlab" in mistaken.stderr) == (2, True)
    for words in (("invoke", "--list"), ("nox", "-l")):  # now they are found here by themselves
        assert run(programs, tmp_path, *words).returncode == 0

    shipped = ROOT / "build_configs" / "packages"
    package_file = tmp_path / "build_configs" / "packages" / "torch-scatter.toml"
    package_file.parent.mkdir(exist_ok=True)
    package_file.write_text(
        (shipped / package_file.name).read_text().replace('session = "scatter"', 'session = "mine"')
    )
    assert run(programs, tmp_path, "invoke", "explain", "mine-3.10-cpu").returncode in {0, 3}
    assert run(programs, tmp_path, "invoke", "explain", "scatter-3.10-cpu").returncode == 4
    package_file.write_text("nonsense = 1\n" + package_file.read_text())
    broken = run(programs, tmp_path, "invoke", "explain", "mine-3.10-cpu")
    assert broken.returncode == 2, broken.stderr
    assert package_file.name in broken.stderr
    other = run(programs, tmp_path, "invoke", "plan", "wheel-3.12-cpu", "--tag=v2.4.1")
    assert other.returncode == 0, "a mistake in one package stops no other"
    assert package_file.name in other.stderr
    package_file.unlink()
    assert (
        run(programs, tmp_path, "invoke", "plan", "wheel-3.12-cpu", "--tag=v2.4.1").returncode == 0
    )


@pytest.mark.parametrize(
    ("words", "obstacle", "exit_code"),
    [(["init"], "build_configs", 7), (["status"], ".torchmill", 2)],
)
def test_a_file_in_the_place_of_a_folder_is_one_message(
    words: list[str], obstacle: str, exit_code: int, tmp_path: Path
) -> None:
    if obstacle == ".torchmill":
        (tmp_path / "build_configs").mkdir()
        (tmp_path / "build_configs" / "own.toml").write_text("a = 1\n")
    (tmp_path / obstacle).touch()
    env = {
        name: value
        for name, value in environment(tmp_path).items()
        if not name.startswith("TORCHMILL_")
    }
    argv = [sys.executable, "-m", "torchmill_suite", *words]
    env |= {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(argv, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == exit_code, done.stderr
    assert re.match(r"error\[[\w-]+\]: ", done.stderr), "it has the code of an error"
    assert done.stderr.count("\n") == 1
    assert obstacle in done.stderr


def test_a_project_does_not_ask_pypi_for_a_name_that_is_not_ours_there() -> None:
    text = (ROOT / "torchmill_suite" / "project" / "requirements.txt").read_text("utf-8")
    assert [line for line in text.splitlines() if not line.startswith("#")] == []
