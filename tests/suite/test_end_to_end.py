"""The sample upstream from fetch to verified wheels, through the real nox and the real invoke.

The sample has a base package, tinytorch, and a package that is built against it, tinyvision. Tests that change nothing
of it use `shared`, one folder with the sources fetched; the others get a folder of their own.
"""

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

SUPPORTED = {f"3.{minor}" for minor in range(8, 14)}
INSTALLED = [python for python in interpreters.installed_interpreters() if python in SUPPORTED]
# The oldest and the newest: a Python takes half a minute. All other tests use the Python of the tests.
PYTHONS = list(dict.fromkeys((INSTALLED[0], INSTALLED[-1])))


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
    result = shared.nox("-s", f"vision-{python}-cpu")
    assert result.returncode == 0, result.stdout + result.stderr
    assert "serializable" not in result.stdout + result.stderr, "nox shows what libraries log"
    shared.check_records()
    tag = f"cp{python.replace('.', '')}"
    names = [name for name in shared.wheels() if f"-{tag}-{tag}-" in name]
    assert [name.split("-")[:2] for name in names] == [
        ["tinytorch", "1.0.0+cpu"],
        ["tinyvision", "0.1.0+cpu"],
    ]
    base, dependent = names
    for name in names:
        wheel = shared.home / "dist" / name
        manifest = shared.manifest(name)
        assert manifest["sha256"] == hashlib.sha256(wheel.read_bytes()).hexdigest()
        assert manifest["commit_verified"] is True
        checks = manifest["checks"]
        assert isinstance(checks, dict)
        assert all(check["ok"] for check in checks.values())
        assert len(checks) >= 3
        assert examine_wheel(wheel).problems == (), "its statement and its SBOM fit it"
        assert all(document_path(wheel, suffix).is_file() for suffix in DOCUMENT_SUFFIXES)
    # The SBOM in the wheel names a submodule's submodule with its licence, and the patch with its digest.
    bits = "third_party/tinymath/third_party/tinybits"
    with zipfile.ZipFile(shared.home / "dist" / base) as archive:
        info = "tinytorch-1.0.0+cpu.dist-info"
        components = {}
        for component in json.loads(archive.read(f"{info}/{sbom.INNER_PATH}"))["components"]:
            assert component["name"] not in components
            components[component["name"]] = component
        assert components[bits]["licenses"] == [{"license": {"id": "ISC"}}]
        patch = components["tinytorch/limits-header.patch"]
        assert [digest["alg"] for digest in patch["hashes"]] == ["SHA-256"]
        licence = next(
            entry["value"]
            for entry in components[bits]["properties"]
            if entry["name"] == sbom.LICENCE_PROPERTY
        )
        assert b"The authors of tinybits" in archive.read(f"{info}/{licence}")
        assert f"{info}/{sbom.INNER_PATH},sha256=" in archive.read(f"{info}/RECORD").decode()
    assert shared.manifest(base)["patches"] == ["tinytorch/limits-header.patch"]
    assert shared.manifest(dependent)["torch"] == "tinytorch==1.0.0+cpu"
    with zipfile.ZipFile(shared.home / "dist" / dependent) as archive:
        metadata = archive.read("tinyvision-0.1.0+cpu.dist-info/METADATA").decode()
        assert "Requires-Dist: tinytorch==1.0.0+cpu" in metadata
        assert not [name for name in archive.namelist() if "libtiny" in name], "the base brings it"


def test_every_field_of_a_manifest_is_in_the_reference(shared: Sample) -> None:
    page = (ROOT / "docs/reference/manifest.md").read_text(encoding="utf-8")
    described = set(re.findall(r"`(\w+)`", page))
    for name in shared.wheels():
        assert shared.manifest(name).keys() <= described, name


def test_what_depends_on_no_python_is_compiled_once(shared: Sample) -> None:
    wheels = [name for name in shared.wheels() if name.startswith("tinytorch-")]
    libraries: set[bytes] = set()
    edges = []  # the commands of ninja that each wheel's build ran
    for name in wheels:
        with zipfile.ZipFile(shared.home / "dist" / name) as wheel:
            members = [member for member in wheel.namelist() if member.endswith("/libtiny.so")]
            libraries.update(map(wheel.read, members))
        edges.append(shared.manifest(name)["edges"])
    assert len(libraries) == 1
    most, *rest = sorted(edges, reverse=True)
    assert most > 20
    assert rest == [3] * (len(wheels) - 1), "two files that read Python's headers, and their link"


def test_what_the_demo_runs_ends_with_commands_that_go_on(shared: Sample, tmp_path: Path) -> None:
    env = shared.env | {"NOX_ENVDIR": str(shared.envs)}
    result = run(
        "invoke", "build", f"vision-{THIS}-cpu", "--tag=v1.0.0", "--yes", home=shared.home, env=env
    )
    assert result.returncode == 0, result.stdout + result.stderr
    commands = dict(line.split(":", 1) for line in result.stdout.splitlines()[-3:])
    assert list(commands) == ["install", "picture", "projects"]
    python, *words, base, dependent = commands["install"].split()
    assert (python, words) == (f"python{THIS}", ["-m", "pip", "install"])
    wheels = [base, dependent]
    assert [Path(wheel).name.split("-")[0] for wheel in wheels] == ["tinytorch", "tinyvision"]
    assert all((ROOT / wheel).is_file() for wheel in wheels)
    for command in (f"{commands['picture']} --out={tmp_path}", commands["projects"]):
        result = run(*command.split(), home=shared.home, env=env)
        assert result.returncode == 0, result.stderr


def test_a_wheel_that_is_packed_again_has_the_same_bytes(shared: Sample) -> None:
    prefix = f"tinytorch-1.0.0+cpu-cp{PYTHONS[-1].replace('.', '')}-"
    (name,) = [wheel for wheel in shared.wheels() if wheel.startswith(prefix)]
    before = shared.manifest(name)
    for file in (shared.home / "dist").glob(f"{name}*"):
        file.unlink()
    packed = list((shared.home / ".torchmill").rglob(name))
    assert not packed, "a packed wheel would only be copied"
    result = shared.nox("-s", f"wheel-{PYTHONS[-1]}-cpu")
    assert result.returncode == 0, result.stdout + result.stderr
    assert shared.manifest(name)["sha256"] == before["sha256"]


@pytest.mark.long
def test_a_release_with_a_pep_517_back_end(sample: Sample, upstream: Path) -> None:
    """Another release in the same environments: nothing of the first is left in them."""
    assert sample.nox("-s", f"wheel-{THIS}-cpu").returncode == 0
    result = run(
        "invoke", "fetch", "--tag=v1.1.0", "--all", f"--mirror=file://{upstream}",
        home=sample.home, env=sample.env,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
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
    result = sample.nox("-s", f"vision-{THIS}-cpu", "--", "--torch", str(wheel))
    assert result.returncode == 0, result.stdout + result.stderr
    (dependent,) = sample.wheels()
    assert sample.manifest(dependent)["torch"] == "tinytorch==1.0.0+git7118d88"
    refused = sample.nox("-s", f"vision-{THIS}-cpu", "--", "--torch", "absent.whl")
    assert refused.returncode == 1
    assert "no such wheel" in refused.stderr


def test_a_missing_compiler_is_told_before_anything_is_copied(sample: Sample) -> None:
    sample.env["CXX"] = str(sample.folder / "absent" / "g++")
    result = sample.nox("-s", f"wheel-{THIS}-cpu")
    assert result.returncode == 1
    output = result.stdout + result.stderr
    assert "C++ compiler: none, needed a C++ compiler" in output
    assert "set CC and CXX to it; correct them if they name none): " in output, "a cure follows"
    assert not (sample.home / ".torchmill" / "trees").exists()


def test_without_an_index_the_command_that_fills_a_folder_is_told(
    sample: Sample, tmp_path: Path
) -> None:
    sample.envs = tmp_path  # in which nothing is installed yet
    sample.env |= {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path)}
    result = sample.nox("-s", f"wheel-{THIS}-cpu")
    output = result.stdout + result.stderr
    assert result.returncode == 1
    assert f"`python{THIS} -m pip wheel -w DIR " in output
    assert "then PIP_FIND_LINKS=DIR here" in output
    assert "Traceback" not in output


def test_a_failing_compiler_has_the_last_word(sample: Sample) -> None:
    patch = sample.configs / "patches" / "tinytorch" / "limits-header.patch"
    patch.write_text(patch.read_text().replace("+#include <limits>", "+#include <absent/header.h>"))
    for name in ("causes.toml", "known_names.toml"):
        shutil.copy(ROOT / "build_configs" / name, sample.configs)
    result = sample.nox("-s", f"wheel-{THIS}-cpu")
    output = result.stdout + result.stderr
    assert result.returncode == 1
    assert "absent/header.h: No such file or directory" in output.rpartition("aborted")[2]
    assert "the whole log:" in output
    assert "to continue where it stopped: nox -s" in output
    assert "\n  cause: the compiler does not find the header `absent/header.h`" in output
    fix = output.rpartition("to continue")[2].partition("\n  fix:")[2]
    assert "`invoke deps` installs what the release needs" in fix
    assert "Traceback" not in output
    assert not sample.wheels()


def test_a_patch_that_does_not_apply_stops_before_anything_compiles(sample: Sample) -> None:
    patch = sample.configs / "patches" / "tinytorch" / "limits-header.patch"
    patch.write_text(patch.read_text().replace("\n #", "\n #other"))
    sample.publish()
    result = sample.nox("-s", f"wheel-{THIS}-cpu")
    assert result.returncode == 1
    assert (
        "the official wheel, `pip install tinytorch==1.0.0`: "
        "cannot tell whether it fits: it was not read" in result.stdout + result.stderr
    )
    assert "patch limits-header.patch failed" in result.stdout + result.stderr
    assert not list((sample.home / ".torchmill" / "logs").glob("*"))


@pytest.mark.long
def test_a_patch_of_the_users_own(sample: Sample, tmp_path: Path) -> None:
    """The wheel has it, its documents name it with its digest, and a build without it makes another wheel."""
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
    result = sample.nox(*words)
    assert result.returncode == 0, result.stdout + result.stderr
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
    assert "return a + b" in (ROOT / "sample/upstream/tinytorch/src/add.cpp").read_text()
    result = sample.nox("-s", f"wheel-{THIS}-cpu")
    output = result.stdout + result.stderr
    assert result.returncode == 1
    assert "so the wheel is not delivered" in output
    assert not sample.wheels()


def test_a_changed_source_is_refused(sample: Sample) -> None:
    tree = sample.home / ".torchmill" / "sources" / "tinytorch" / "v1.0.0" / "tree"
    (tree / "setup.py").write_text("# mine\n")
    result = sample.nox("-s", f"wheel-{THIS}-cpu")
    assert result.returncode == 1
    assert "setup.py" in result.stdout + result.stderr
    assert (tree / "setup.py").read_text() == "# mine\n", "nothing of the user's is lost"


def wait_until_compiled(sample: Sample, running: subprocess.Popen[str], session: str) -> None:
    """Wait until a running session has compiled a file; fail the test after ten minutes."""
    log = sample.home / ".torchmill" / "logs" / f"v1.0.0-{session}.log"
    until = time.monotonic() + 600
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
    # With a cache of its own, or nothing would be compiled that could be stopped.
    sample = fetched(tmp_path, upstream, envs)
    session = f"wheel-{THIS}-cpu"
    running = sample.start("-s", session, "--", "--jobs", "1")
    wait_until_compiled(sample, running, session)
    other = sample.nox("-s", session, "--", "--jobs", "1")
    assert other.returncode == 1
    assert f"{session} is being built by another run" in other.stdout + other.stderr

    children = psutil.Process(running.pid).children(recursive=True)
    os.kill(running.pid, signal.SIGINT)
    output, _ = running.communicate(timeout=60)
    assert running.returncode != 0
    # What was interrupted needs a moment to end; what nobody ended would never do so.
    _, alive = psutil.wait_procs(children, timeout=10)
    alive = [child for child in alive if child.is_running() and child.status() != "zombie"]
    assert not alive, output
    assert not sample.wheels()

    objects = list((sample.home / ".torchmill" / "trees").rglob("*.o"))
    assert objects, "what was compiled stays"
    # From here on with what other tests have compiled: what is left to compile need not take its time again.
    shutil.rmtree(sample.cache / "ccache", ignore_errors=True)
    (sample.cache / "ccache").symlink_to(envs.with_name("ccache"))
    result = sample.nox("-s", session)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "reusing " in result.stdout + result.stderr
    assert len(sample.wheels()) == 1


def member_files(archive: zipfile.ZipFile) -> list[str]:
    """Return the names of an archive's files, without its folders."""
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
    result = subprocess.run(
        ["bash", str(file)], cwd=tmp_path, env=env, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
    (script_wheel,) = (tmp_path / "work" / "dist").glob("*.whl")
    session_wheel = shared.home / "dist" / script_wheel.name
    assert session_wheel.is_file(), f"{script_wheel.name} is not among {shared.wheels()}"
    with (
        zipfile.ZipFile(script_wheel) as script_archive,
        zipfile.ZipFile(session_wheel) as session_archive,
    ):
        # The SBOM and the licences of submodules, which only a session adds.
        documents = re.compile(r"/sboms/|/licenses/bundled/")
        names = member_files(session_archive)
        without_documents = [name for name in names if not documents.search(name)]
        assert without_documents != names
        assert member_files(script_archive) == without_documents
        version = "tinytorch/version.py"
        assert script_archive.read(version) == session_archive.read(version)


# A package that a user adds: one file of facts, and an archive on an index.
SCATTER_FACTS = """\
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
SCATTER_SETUP = """\
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
    """Return the archive of an extension whose setup.py lets nobody choose its version or its base."""
    tree = folder / "tiny_scatter-0.3"
    (tree / "tiny_scatter").mkdir(parents=True)
    (tree / "setup.py").write_text(SCATTER_SETUP)
    (tree / "tiny_scatter/__init__.py").write_text("import tinytorch\nfrom ._C import scale\n")
    shutil.copy(ROOT / "sample/upstream/tinyvision/tinyvision/csrc/module.cpp", tree)
    return Path(shutil.make_archive(str(tree), "gztar", folder, tree.name)).read_bytes()


def stat_of_files(folder: Path) -> dict[Path, tuple[int, int]]:
    """Return the size and the time of the last change (ns) of each file in a folder.

    Python writes bytecode whenever it imports, so that is left out.
    """
    return {
        path: (path.stat().st_size, path.stat().st_mtime_ns)
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


@pytest.mark.long
def test_a_package_is_one_file_and_an_archive_on_an_index(shared: Sample, tmp_path: Path) -> None:
    facts = shared.configs / "packages/tiny-scatter.toml"
    facts.write_text(SCATTER_FACTS.format(expected="7.0"))
    content = source_archive(tmp_path)
    index = Index()
    index.add(
        "tiny_scatter-0.3.tar.gz", content, hashes={"sha256": hashlib.sha256(content).hexdigest()}
    )
    with serving(index):
        env = {**shared.env, "PIP_INDEX_URL": index.url}
        result = run("invoke", "fetch", "--package", "tiny-scatter", home=shared.home, env=env)
    assert result.returncode == 0, result.stderr
    session = f"scatter-{THIS}-cpu"
    failed = shared.nox("-s", session)
    assert (
        "'assert scale(3.0, 2) == 7.0' of its facts: AssertionError"
        in failed.stdout + failed.stderr
    )
    facts.write_text(SCATTER_FACTS.format(expected="6.0"))
    result = shared.nox("-s", session)
    assert result.returncode == 0, result.stdout + result.stderr
    prefix = "tiny_scatter-0.3+cpu.tinytorch1.0.0-"
    (name,) = [wheel for wheel in shared.wheels() if wheel.startswith(prefix)]
    assert set(shared.manifest(name)["checks"]) == {"import", "version", "base", "smoke"}
    with zipfile.ZipFile(shared.home / "dist" / name) as archive:
        metadata = archive.read("tiny_scatter-0.3+cpu.tinytorch1.0.0.dist-info/METADATA").decode()
    assert [
        line for line in metadata.splitlines() if line.startswith(("Version", "Requires-Dist"))
    ] == [
        "Version: 0.3+cpu.tinytorch1.0.0",
        "Requires-Dist: tinytorch==1.0.0+cpu",
    ]
    # An environment of somebody who has the base installed, and no wheel of it.
    installed_env = tmp_path / "env"
    subprocess.run([sys.executable, "-m", "venv", str(installed_env)], check=True)
    base = next(path for path in (shared.home / "dist").glob("tinytorch-1.0.0+cpu-*.whl"))
    subprocess.run([str(installed_env / "bin/pip"), "install", "-q", str(base)], check=True)
    before = stat_of_files(installed_env)
    for built in ("compiled", "up to date"):
        result = shared.nox("-s", session, "--", f"--torch={installed_env}")
        assert result.returncode == 0, result.stdout + result.stderr
        output = result.stdout + result.stderr
        assert (built == "up to date") == ("up to date" in output), output
    assert shared.manifest(name)["torch"] == "tinytorch==1.0.0+cpu"
    script = run(
        "invoke",
        "plan",
        session,
        f"--torch={installed_env}",
        "--sh",
        home=shared.home,
        env=shared.env,
    )
    assert script.returncode == 0, script.stderr
    (tmp_path / "build.sh").write_text(script.stdout)
    env = environment(tmp_path) | {
        "PYTHON": str(interpreters.resolve_interpreter(THIS)),
        "WORK": str(tmp_path / "work"),
    }
    env["SOURCE"] = str(next((shared.home / ".torchmill/sources/tiny-scatter").glob("*/tree")))
    argv = ["bash", str(tmp_path / "build.sh")]
    result = subprocess.run(argv, env=env, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    (repaired,) = (tmp_path / "work/dist").glob("*.whl")
    assert repaired.name == name, "with the same tag"
    assert stat_of_files(installed_env) == before
    facts.unlink()
