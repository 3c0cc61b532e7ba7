"""The sample upstream from fetch to verified wheels, through the real nox and the real invoke."""

import difflib
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import psutil
import pytest

from tests.support.commands import ROOT, environment, run
from tests.support.index_server import Index, serving
from tests.support.sampled import THIS, Sample, fetched
from torchmill.deliver.agreement import examine_wheel
from torchmill.host import interpreters
from torchmill.wheel import sbom
from torchmill.wheel.dist_files import DOCUMENT_SUFFIXES, document_path

pytestmark = pytest.mark.slow

INSTALLED = [
    one
    for one in interpreters.installed_interpreters()
    if one in {f"3.{minor}" for minor in range(8, 14)}
]
PYTHONS = list(
    dict.fromkeys((INSTALLED[0], INSTALLED[-1]))
)  # each takes half a minute; THIS has all the rest


@pytest.fixture(scope="module")
def shared(
    tmp_path_factory: pytest.TempPathFactory, upstream: Path, envs: Path, cache: Path
) -> Sample:
    return fetched(tmp_path_factory.mktemp("sample"), upstream, envs, cache)


@pytest.fixture
def sample(tmp_path: Path, upstream: Path, envs: Path, cache: Path) -> Sample:
    return fetched(tmp_path, upstream, envs, cache)


@pytest.mark.parametrize("python", PYTHONS)
def test_wheel_and_dependent_wheel_for_old_and_new_pythons(shared: Sample, python: str) -> None:
    """One command: the dependent session builds its base first, because it is missing."""
    done = shared.nox("-s", f"vision-{python}-cpu")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "serializable" not in done.stdout + done.stderr, "nox shows what libraries log"
    shared.check_records()
    tag = f"cp{python.replace('.', '')}"
    names = [name for name in shared.wheels() if f"-{tag}-{tag}-" in name]
    assert [name.split("-")[:2] for name in names] == [
        ["tinytorch", "1.0.0+cpu"],
        ["tinyvision", "0.1.0+cpu"],
    ]
    base, dependent = names
    for name in names:
        record = shared.manifest(name)
        data = (shared.home / "dist" / name).read_bytes()
        assert record["sha256"] == hashlib.sha256(data).hexdigest()
        assert record["commit_verified"] is True
        checks = record["checks"]
        assert isinstance(checks, dict)
        assert all(check["ok"] for check in checks.values())
        assert len(checks) >= 3
        assert examine_wheel(shared.home / "dist" / name).problems == (), (
            "its statement and its SBOM fit it"
        )
        assert all(
            document_path(shared.home / "dist" / name, suffix).is_file()
            for suffix in DOCUMENT_SUFFIXES
        )
    bits = "third_party/tinymath/third_party/tinybits"
    with zipfile.ZipFile(shared.home / "dist" / base) as archive:
        info = "tinytorch-1.0.0+cpu.dist-info"
        said = json.loads(archive.read(f"{info}/{sbom.INNER_PATH}"))
        (part,) = (one for one in said["components"] if one["name"] == bits)
        assert part["licenses"] == [{"license": {"id": "ISC"}}]
        name = "tinytorch/limits-header.patch"
        (patch,) = (one for one in said["components"] if one["name"] == name)
        assert [digest["alg"] for digest in patch["hashes"]] == ["SHA-256"]
        text = next(
            one["value"] for one in part["properties"] if one["name"] == sbom.LICENCE_PROPERTY
        )
        assert b"The authors of tinybits" in archive.read(f"{info}/{text}")
        assert f"{info}/{sbom.INNER_PATH},sha256=" in archive.read(f"{info}/RECORD").decode()
    assert shared.manifest(base)["patches"] == ["tinytorch/limits-header.patch"]
    assert shared.manifest(dependent)["torch"] == "tinytorch==1.0.0+cpu"
    with zipfile.ZipFile(shared.home / "dist" / dependent) as archive:
        metadata = archive.read("tinyvision-0.1.0+cpu.dist-info/METADATA").decode()
        assert "Requires-Dist: tinytorch==1.0.0+cpu" in metadata
        assert not [name for name in archive.namelist() if "libtiny" in name], "the base brings it"


def test_every_field_of_a_manifest_is_in_the_reference(shared: Sample) -> None:
    told = set(
        re.findall(r"`(\w+)`", (ROOT / "docs/reference/manifest.md").read_text(encoding="utf-8"))
    )
    assert [
        field for name in shared.wheels() for field in shared.manifest(name) if field not in told
    ] == []


def test_what_depends_on_no_python_is_compiled_once(shared: Sample) -> None:
    wheels = [name for name in shared.wheels() if name.startswith("tinytorch-")]
    libraries, edges = set(), []
    for name in wheels:
        with zipfile.ZipFile(shared.home / "dist" / name) as wheel:
            libraries |= {
                wheel.read(one) for one in wheel.namelist() if one.endswith("/libtiny.so")
            }
        edges.append(shared.manifest(name)["edges"])
    assert len(libraries) == 1
    first, *others = sorted(edges, reverse=True)
    assert first > 20
    assert others == [3] * (len(wheels) - 1), "two files that read Python's headers, and their link"


def test_what_the_demo_runs_ends_with_commands_that_go_on(shared: Sample, tmp_path: Path) -> None:
    env = shared.env | {"NOX_ENVDIR": str(shared.envs)}
    done = run(
        "invoke", "build", f"vision-{THIS}-cpu", "--tag=v1.0.0", "--yes", home=shared.home, env=env
    )
    assert done.returncode == 0, done.stdout + done.stderr
    said = dict(line.split(":", 1) for line in done.stdout.splitlines()[-3:])
    assert list(said) == ["install", "picture", "projects"]
    python, *words, first, second = said["install"].split()
    assert (python, words) == (f"python{THIS}", ["-m", "pip", "install"])
    wheels = [first, second]
    assert [Path(one).name.split("-")[0] for one in wheels] == ["tinytorch", "tinyvision"]
    assert all((ROOT / one).is_file() for one in wheels)
    for line in (f"{said['picture']} --out={tmp_path}", said["projects"]):
        then = run(*line.split(), home=shared.home, env=env)
        assert then.returncode == 0, then.stderr


def test_a_wheel_that_is_packed_again_has_the_same_bytes(shared: Sample) -> None:
    (name,) = (
        one
        for one in shared.wheels()
        if one.startswith(f"tinytorch-1.0.0+cpu-cp{PYTHONS[-1].replace('.', '')}-")
    )
    before = shared.manifest(name)
    for file in (shared.home / "dist").glob(f"{name}*"):
        file.unlink()
    assert not list((shared.home / ".torchmill").rglob(name)), "no packed one is left to be taken"
    done = shared.nox("-s", f"wheel-{PYTHONS[-1]}-cpu")
    assert done.returncode == 0, done.stdout + done.stderr
    assert shared.manifest(name)["sha256"] == before["sha256"]


@pytest.mark.long
def test_a_release_with_a_pep_517_back_end(sample: Sample, upstream: Path) -> None:
    """Another release in the same environments: nothing of the first is left in them."""
    assert sample.nox("-s", f"wheel-{THIS}-cpu").returncode == 0
    done = run(
        "invoke", "fetch", "--tag=v1.1.0", "--all", f"--mirror=file://{upstream}",
        home=sample.home, env=sample.env,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    built = sample.nox("-s", f"vision-{THIS}-cpu")
    assert built.returncode == 0, built.stdout + built.stderr
    names = [
        name
        for name in sample.wheels()
        if name.startswith(("tinytorch-1.1.0+cpu-", "tinyvision-0.2.0+cpu-"))
    ]
    assert len(names) == 2
    requirements = sample.manifest(names[0])["requirements"]
    assert isinstance(requirements, list)
    installed = {line.partition("==")[0] for line in requirements}
    assert {"scikit_build_core", "build"} <= {name.replace("-", "_") for name in installed}
    assert "wheel" not in installed


@pytest.mark.long
def test_a_dependent_wheel_is_made_again_when_its_base_changed(sample: Sample) -> None:
    session = f"vision-{THIS}-cpu"
    assert sample.nox("-s", session).returncode == 0
    dependent = next(name for name in sample.wheels() if name.startswith("tinyvision"))
    before = sample.manifest(dependent)["key"]
    assert "is up to date" in sample.nox("-s", session).stderr
    changed = sample.nox("-R", "-s", f"wheel-{THIS}-cpu", "--", "--set", "USE_TINY_FAST=0")
    assert changed.returncode == 0, changed.stdout + changed.stderr
    base = next(name for name in sample.wheels() if name.startswith("tinytorch"))
    switches = sample.manifest(base)["switches"]
    assert isinstance(switches, dict)
    assert switches["USE_TINY_FAST"] == "0"
    kits = sorted(sample.home.glob(".torchmill/trees/v1.0.0/*/kit"))
    assert [(kit / "bin" / "cmake").is_file() for kit in kits] == [True, True], (
        "also where nox is to install nothing"
    )
    assert sample.nox("-s", session).returncode == 0
    assert sample.manifest(dependent)["key"] != before


@pytest.mark.long
def test_another_wheel_to_build_against(sample: Sample) -> None:
    assert sample.nox("-s", f"wheel-{THIS}-cpu", "--", "--label", "git").returncode == 0
    (name,) = sample.wheels()
    wheel = sample.folder / name
    (sample.home / "dist" / name).rename(wheel)
    done = sample.nox("-s", f"vision-{THIS}-cpu", "--", "--torch", str(wheel))
    assert done.returncode == 0, done.stdout + done.stderr
    (dependent,) = sample.wheels()
    assert sample.manifest(dependent)["torch"] == "tinytorch==1.0.0+git7118d88"
    wrong = sample.nox("-s", f"vision-{THIS}-cpu", "--", "--torch", "absent.whl")
    assert wrong.returncode == 1
    assert "no such wheel" in wrong.stderr


def test_a_missing_compiler_is_told_before_anything_is_copied(sample: Sample) -> None:
    sample.env["CXX"] = str(sample.folder / "absent" / "g++")
    done = sample.nox("-s", f"wheel-{THIS}-cpu")
    assert done.returncode == 1
    assert "C++ compiler: none, needed a C++ compiler" in done.stdout + done.stderr
    assert "set CC and CXX to it; correct them if they name none): " in done.stdout + done.stderr, (
        "a cure follows"
    )
    assert not (sample.home / ".torchmill" / "trees").exists()


def test_without_an_index_the_command_that_fills_a_folder_is_told(
    sample: Sample, tmp_path: Path
) -> None:
    sample.envs = tmp_path  # in which nothing is installed yet
    sample.env |= {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path)}
    done = sample.nox("-s", f"wheel-{THIS}-cpu")
    said = done.stdout + done.stderr
    assert done.returncode == 1
    assert f"`python{THIS} -m pip wheel -w DIR " in said
    assert "then PIP_FIND_LINKS=DIR here" in said
    assert "Traceback" not in said


def test_a_failing_compiler_has_the_last_word(sample: Sample) -> None:
    patch = sample.configs / "patches" / "tinytorch" / "limits-header.patch"
    patch.write_text(patch.read_text().replace("+#include <limits>", "+#include <absent/header.h>"))
    for name in ("causes.toml", "known_names.toml"):
        shutil.copy(ROOT / "build_configs" / name, sample.configs)
    done = sample.nox("-s", f"wheel-{THIS}-cpu")
    said = done.stdout + done.stderr
    assert done.returncode == 1
    assert "absent/header.h: No such file or directory" in said.rpartition("aborted")[2]
    assert "the whole log:" in said
    assert "to continue where it stopped: nox -s" in said
    assert "\n  cause: the compiler does not find `absent/header.h`" in said
    fix = said.rpartition("to continue")[2].partition("\n  fix:")[2]
    assert "`invoke deps` installs what the release needs" in fix
    assert "Traceback" not in said
    assert not sample.wheels()


def test_a_patch_that_does_not_apply_stops_before_anything_compiles(sample: Sample) -> None:
    patch = sample.configs / "patches" / "tinytorch" / "limits-header.patch"
    patch.write_text(patch.read_text().replace("\n #", "\n #other"))
    sample.publish()
    done = sample.nox("-s", f"wheel-{THIS}-cpu")
    assert done.returncode == 1
    assert (
        "the official wheel, `pip install tinytorch==1.0.0`: cannot tell whether it fits: it was not read"
        in done.stdout + done.stderr
    )
    assert "patch limits-header.patch failed" in done.stdout + done.stderr
    assert not list((sample.home / ".torchmill" / "logs").glob("*"))


@pytest.mark.long
def test_a_patch_of_the_users_own(sample: Sample, tmp_path: Path) -> None:
    """It is in the wheel, named with its digest, and a build without it is another one."""
    session = f"wheel-{THIS}-cpu"
    file = next(sample.home.glob(".torchmill/sources/tinytorch/*/tree/tinytorch/__init__.py"))
    before = file.read_text().splitlines(keepends=True)
    lines = difflib.unified_diff(
        before, [*before, "LUCKY = 7\n"], "a/tinytorch/__init__.py", "b/tinytorch/__init__.py"
    )
    patch = tmp_path / "mine" / "lucky.patch"
    patch.parent.mkdir()
    patch.write_text("".join(lines))
    words = ("-s", session, "--", "--patch", str(patch.parent))
    done = sample.nox(*words)
    assert done.returncode == 0, done.stdout + done.stderr
    (name,) = sample.wheels()
    wheel = sample.home / "dist" / name
    with zipfile.ZipFile(wheel) as archive:
        assert "LUCKY = 7" in archive.read("tinytorch/__init__.py").decode()
    manifest = sample.manifest(name)
    assert manifest["patches"] == ["tinytorch/limits-header.patch", "given/lucky.patch"]
    assert manifest["options"] == {"patches": ["given/lucky.patch"]}
    digest = hashlib.sha256(patch.read_bytes()).hexdigest()
    assert all(digest in document_path(wheel, suffix).read_text() for suffix in DOCUMENT_SUFFIXES)
    assert "is up to date" in sample.nox(*words).stderr
    moved = patch.rename(tmp_path / patch.name)
    assert "is up to date" in sample.nox("-s", session, "--", f"--patch={moved}").stderr, (
        "wherever the same patch lies"
    )
    assert sample.nox("-s", session).returncode == 0
    with zipfile.ZipFile(wheel) as archive:
        assert "LUCKY" not in archive.read("tinytorch/__init__.py").decode()
    moved.write_text(moved.read_text().replace("\n ", "\n other", 1))
    refused = sample.nox("-s", session, "--", f"--patch={moved}")
    assert refused.returncode == 1
    assert "patch lucky.patch failed" in refused.stdout + refused.stderr


def test_a_wheel_that_fails_verification_is_not_delivered(sample: Sample) -> None:
    """The wheel builds and imports, but its sums are wrong."""
    sample.add_rule(
        'reason = "spoil the sum"\n'
        'when = { release = "<1.1" }\n'
        'prepare = [["sed", "-i", "s/return a + b/return a - b/", "src/add.cpp"]]'
    )
    text = (ROOT / "sample/upstream/tinytorch/src/add.cpp").read_text()
    assert "return a + b" in text
    done = sample.nox("-s", f"wheel-{THIS}-cpu")
    said = done.stdout + done.stderr
    assert done.returncode == 1
    assert "so the wheel is not delivered" in said
    assert not sample.wheels()


def test_a_changed_source_is_refused(sample: Sample) -> None:
    tree = sample.home / ".torchmill" / "sources" / "tinytorch" / "v1.0.0" / "tree"
    (tree / "setup.py").write_text("# mine\n")
    done = sample.nox("-s", f"wheel-{THIS}-cpu")
    assert done.returncode == 1
    assert "setup.py" in done.stdout + done.stderr
    assert (tree / "setup.py").read_text() == "# mine\n", "nothing of the user's is lost"


def compiling(sample: Sample, running: subprocess.Popen[str], session: str) -> None:
    """Wait until the session has compiled something."""
    log = sample.home / ".torchmill" / "logs" / f"v1.0.0-{session}.log"
    until = time.monotonic() + 120
    while time.monotonic() < until:
        if log.exists() and "[2/" in log.read_text(errors="replace"):
            return
        if running.poll() is not None:
            break
        time.sleep(0.05)
    running.kill()
    pytest.fail(f"it never compiled: {running.stdout.read() if running.stdout else ''}")


def test_two_sessions_on_one_cell_then_ctrl_c_then_resume(
    tmp_path: Path, upstream: Path, envs: Path
) -> None:
    sample = fetched(
        tmp_path, upstream, envs
    )  # with a cache of its own: there must be something to stop
    session = f"wheel-{THIS}-cpu"
    running = sample.start("-s", session, "--", "--jobs", "1")
    compiling(sample, running, session)
    other = sample.nox("-s", session, "--", "--jobs", "1")
    assert other.returncode == 1
    assert f"{session} is being built by another run" in other.stdout + other.stderr

    children = psutil.Process(running.pid).children(recursive=True)
    os.kill(running.pid, signal.SIGINT)
    said, _ = running.communicate(timeout=60)
    assert running.returncode != 0
    # what was interrupted is still there for a moment; what is left behind stays
    _, left = psutil.wait_procs(children, timeout=10)
    assert not [child for child in left if child.is_running() and child.status() != "zombie"], said
    assert not sample.wheels()

    objects = list((sample.home / ".torchmill" / "trees").rglob("*.o"))
    assert objects, "what was compiled is kept"
    done = sample.nox("-s", session)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "reusing " in done.stdout + done.stderr
    assert len(sample.wheels()) == 1


def contents(archive: zipfile.ZipFile) -> list[str]:
    return sorted(name for name in archive.namelist() if not name.endswith("/"))


@pytest.mark.long
def test_the_shell_script_builds_the_same_wheel(
    shared: Sample, upstream: Path, tmp_path: Path
) -> None:
    """With nothing of the suite on its way: bash, git, a compiler and pip."""
    session = f"wheel-{THIS}-cpu"
    assert shared.nox("-s", session).returncode == 0
    script = run("invoke", "plan", session, "--sh", home=shared.home, env=shared.env)
    assert script.returncode == 0, script.stderr
    file = tmp_path / "build.sh"
    file.write_text(script.stdout)
    env = environment(tmp_path) | {
        "PYTHON": str(interpreters.resolve_interpreter(THIS)),
        "WORK": str(tmp_path / "work"),
        "GIT_CONFIG_COUNT": "2",
        "GIT_CONFIG_KEY_0": f"url.file://{upstream}/.insteadOf",
        "GIT_CONFIG_VALUE_0": "https://github.com/",
        "GIT_CONFIG_KEY_1": "protocol.file.allow",
        "GIT_CONFIG_VALUE_1": "always",
        "USE_TINY_FAST": "0",  # the script must not let it in
    }
    done = subprocess.run(
        ["bash", str(file)], cwd=tmp_path, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    (made,) = (tmp_path / "work" / "dist").glob("*.whl")
    ours = shared.home / "dist" / made.name
    assert ours.is_file(), f"{made.name} is not among {shared.wheels()}"
    with zipfile.ZipFile(made) as theirs, zipfile.ZipFile(ours) as own:
        added = [
            name for name in contents(own) if "/sboms/" in name or "/licenses/bundled/" in name
        ]
        assert added, "which the script leaves out"
        assert contents(theirs) == [name for name in contents(own) if name not in added]
        version = "tinytorch/version.py"
        assert theirs.read(version) == own.read(version)


BESIDE = """\
name = "tiny-scatter"
session = "scatter"
after = "tinytorch"
pypi = "tiny-scatter"
import_name = "tiny_scatter"
compilers = "path"
memory_per_job = "0.3 GiB"
disk = "200 MiB"
smoke = ["from tiny_scatter import scale", "assert scale(3.0, 2) == {expected}"]

[[release]]
version = "0.3"
torch = "<2"
source = "a test"

[[rule]]
reason = "setup.py compiles one extension with setuptools alone"
requires = ["setuptools<81", "wheel"]
"""
SETUP = """\
from pathlib import Path
import tinytorch
from setuptools import Extension, setup
setup(
    name="tiny-scatter", version="0.3", packages=["tiny_scatter"], install_requires=["tinytorch>=0.1"],
    ext_modules=[Extension(
        "tiny_scatter._C", ["module.cpp"], include_dirs=[tinytorch.include_path()], libraries=["tiny"],
        library_dirs=[str(Path(tinytorch.lib_path()).parent)], extra_compile_args=["-std=c++17"],
    )],
)
"""


def source_archive(folder: Path) -> bytes:
    """Return an extension of the sample whose setup.py can be told neither its version nor its base."""
    tree = folder / "tiny_scatter-0.3"
    (tree / "tiny_scatter").mkdir(parents=True)
    (tree / "setup.py").write_text(SETUP)
    (tree / "tiny_scatter/__init__.py").write_text("import tinytorch\nfrom ._C import scale\n")
    shutil.copy(ROOT / "sample/upstream/tinyvision/tinyvision/csrc/module.cpp", tree)
    return Path(shutil.make_archive(str(tree), "gztar", folder, tree.name)).read_bytes()


def stat_of_files(folder: Path) -> dict[Path, tuple[int, int]]:
    """Return what tells whether files were written, but those that Python compiles whenever it imports."""
    return {
        path: (path.stat().st_size, path.stat().st_mtime_ns)
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


@pytest.mark.long
def test_a_package_is_one_file_and_an_archive_on_an_index(shared: Sample, tmp_path: Path) -> None:
    one = shared.configs / "packages/tiny-scatter.toml"
    one.write_text(BESIDE.format(expected="7.0"))
    content = source_archive(tmp_path)
    index = Index()
    index.add(
        "tiny_scatter-0.3.tar.gz", content, hashes={"sha256": hashlib.sha256(content).hexdigest()}
    )
    with serving(index):
        env = {**shared.env, "PIP_INDEX_URL": index.url}
        done = run("invoke", "fetch", "--package", "tiny-scatter", home=shared.home, env=env)
    assert done.returncode == 0, done.stderr
    session = f"scatter-{THIS}-cpu"
    failed = shared.nox("-s", session)
    assert (
        "'assert scale(3.0, 2) == 7.0' of its facts: AssertionError"
        in failed.stdout + failed.stderr
    )
    one.write_text(BESIDE.format(expected="6.0"))
    done = shared.nox("-s", session)
    assert done.returncode == 0, done.stdout + done.stderr
    (name,) = [
        wheel
        for wheel in shared.wheels()
        if wheel.startswith("tiny_scatter-0.3+cpu.tinytorch1.0.0-")
    ]
    assert set(shared.manifest(name)["checks"]) == {"import", "version", "base", "smoke"}
    with zipfile.ZipFile(shared.home / "dist" / name) as archive:
        metadata = archive.read("tiny_scatter-0.3+cpu.tinytorch1.0.0.dist-info/METADATA").decode()
    assert [
        line for line in metadata.splitlines() if line.startswith(("Version", "Requires-Dist"))
    ] == [
        "Version: 0.3+cpu.tinytorch1.0.0",
        "Requires-Dist: tinytorch==1.0.0+cpu",
    ]
    theirs = tmp_path / "env"  # of somebody who has the base installed, and no wheel of it
    subprocess.run([sys.executable, "-m", "venv", str(theirs)], check=True)
    base = next(path for path in (shared.home / "dist").glob("tinytorch-1.0.0+cpu-*.whl"))
    subprocess.run([str(theirs / "bin/pip"), "install", "-q", str(base)], check=True)
    before = stat_of_files(theirs)
    for built in ("compiled", "up to date"):
        done = shared.nox("-s", session, "--", f"--torch={theirs}")
        assert done.returncode == 0, done.stdout + done.stderr
        assert (built == "up to date") == ("up to date" in done.stdout + done.stderr), (
            done.stdout + done.stderr
        )
    assert shared.manifest(name)["torch"] == "tinytorch==1.0.0+cpu"
    script = run(
        "invoke", "plan", session, f"--torch={theirs}", "--sh", home=shared.home, env=shared.env
    )
    assert script.returncode == 0, script.stderr
    (tmp_path / "build.sh").write_text(script.stdout)
    env = environment(tmp_path) | {
        "PYTHON": str(interpreters.resolve_interpreter(THIS)),
        "WORK": str(tmp_path / "work"),
    }
    env["SOURCE"] = str(next((shared.home / ".torchmill/sources/tiny-scatter").glob("*/tree")))
    made = subprocess.run(
        ["bash", str(tmp_path / "build.sh")], env=env, capture_output=True, text=True, check=False
    )
    assert made.returncode == 0, made.stdout + made.stderr
    (repaired,) = (tmp_path / "work/dist").glob("*.whl")
    assert repaired.name == name, "with the same tag"
    assert stat_of_files(theirs) == before
    one.unlink()
