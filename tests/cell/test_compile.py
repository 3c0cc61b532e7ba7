"""The environment of a build, and real builds of the sample under the guard."""

import contextlib
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from guard_support.guards import until
from millguard import compiler_gate, processes
from millguard.server import GATE
from millguard.session import GuardedBuild
from millguard.timeline import UnitRun, parse_record

from tests.support.changed_facts import change_groups
from tests.support.commands import ROOT
from tests.support.contexts import HOST, job
from tests.support.hosts import change_host
from tests.support.sampled import THIS, Sample, fetched
from torchmill.cell.context import BuildContext
from torchmill.cell.guarded_compilers import (
    find_replaced_hooks,
    languages_past_gate,
    prepare_compiler_environment,
)
from torchmill.cell.sandbox import choose_sandbox
from torchmill.config.facts import Facts
from torchmill.config.package import Launch
from torchmill.plan.build_options import Options
from torchmill.toolchain.compiler_cache import CompilerCache
from torchmill.wheel.statement import compose_statement

CONFIGURED = """\
//CXX compiler
CMAKE_CXX_COMPILER:FILEPATH=/usr/bin/c++
CMAKE_CXX_COMPILER_AR:FILEPATH=/usr/bin/gcc-ar
CMAKE_CXX_COMPILER_LAUNCHER:STRING={cxx}
CMAKE_C_COMPILER:STRING=/usr/bin/cc
CMAKE_C_COMPILER_LAUNCHER:UNINITIALIZED={c}
"""
HOOKS = {"CCACHE_PREFIX": "/tree/gate", "CMAKE_CXX_LINKER_LAUNCHER": "/tree/gate"}


def test_nothing_is_said_where_all_hooks_hold() -> None:
    assert list(find_replaced_hooks(HOOKS, {**HOOKS, "MAX_JOBS": "6"})) == []


@pytest.mark.parametrize("name", HOOKS)
def test_what_the_user_set_is_told(name: str) -> None:
    (sentence,) = find_replaced_hooks(HOOKS, {**HOOKS, name: "distcc"})
    assert sentence.startswith(f"{name} stays 'distcc', as you set it")


def test_a_tree_that_was_configured_with_a_gate_or_the_cache_is_held() -> None:
    text = CONFIGURED.format(cxx="/usr/bin/ccache", c="/tree/gate")
    assert languages_past_gate(text, {"/tree/gate", "/usr/bin/ccache"}) == []


@pytest.mark.parametrize("launcher", ["", "/usr/bin/distcc", "/tree/gate/other"])
def test_a_tree_of_an_earlier_run_names_its_languages(launcher: str) -> None:
    assert languages_past_gate(CONFIGURED.format(cxx=launcher, c="/tree/gate"), {"/tree/gate"}) == [
        "CXX"
    ]


def test_a_language_without_a_launcher_goes_past() -> None:
    assert languages_past_gate("CMAKE_CUDA_COMPILER:FILEPATH=/usr/bin/nvcc\n", {"/tree/gate"}) == [
        "CUDA"
    ]


@pytest.mark.parametrize(
    "line", ["CMAKE_BUILD_TYPE:STRING=Release", "CMAKE_ASM_COMPILER:FILEPATH=/usr/bin/cc"]
)
def test_what_needs_no_gate_is_not_missed(line: str) -> None:
    assert languages_past_gate(f"{line}\n", {"/tree/gate"}) == []


@pytest.fixture
def begun(small_facts: Facts, tmp_path: Path) -> BuildContext:
    """Return a job on a machine of four cores whose plan compiles four files at a time."""
    return job(small_facts, tmp_path, change_host(HOST, resources={"memory": 2**33}))


def guarded(begun: BuildContext) -> GuardedBuild:
    gate = begun.tree.folder / "gate"
    hooks = compiler_gate.gate_hooks(gate, {})
    return GuardedBuild(
        gate, begun.layout.root, None, hooks, {**hooks, "MILLGUARD_GATE": "/of/this/build"}
    )


def configure(begun: BuildContext, launcher: str) -> None:
    cache = begun.tree.source / "build" / "CMakeCache.txt"
    cache.parent.mkdir(parents=True)
    cache.write_text(CONFIGURED.format(cxx=launcher, c=launcher))


def test_more_compilers_are_started_where_the_gate_holds_all(begun: BuildContext) -> None:
    noted: list[str] = []
    variables = prepare_compiler_environment(begun, guarded(begun), CompilerCache(), noted.append)
    assert variables["MAX_JOBS"] == "18"
    assert variables["MILLGUARD_GATE"] == "/of/this/build"
    assert variables["CMAKE_CXX_COMPILER_LAUNCHER"] == str(begun.tree.folder / "gate")
    assert noted == []
    configure(begun, str(begun.tree.folder / "gate"))
    assert (
        prepare_compiler_environment(begun, guarded(begun), CompilerCache(), noted.append)
        == variables
    )
    assert noted == []


def with_launcher(begun: BuildContext) -> BuildContext:
    """Return a build whose user said `--set CMAKE_CXX_COMPILER_LAUNCHER=distcc`."""
    settings = {**begun.plan.variables, "CMAKE_CXX_COMPILER_LAUNCHER": "distcc"}
    return replace(begun, plan=replace(begun.plan, variables=settings))


def test_a_launcher_in_place_of_the_cache_leads_past_the_gate_behind_it(
    begun: BuildContext,
) -> None:
    launchers = dict.fromkeys(
        ("CMAKE_C_COMPILER_LAUNCHER", "CMAKE_CXX_COMPILER_LAUNCHER"), "/usr/bin/ccache"
    )
    caching = {"CCACHE_DIR": "/cache", **launchers}
    cache = CompilerCache("ccache", "/usr/bin/ccache", "4.7.5", caching)
    gate = begun.tree.folder / "gate"
    hooks = compiler_gate.gate_hooks(gate, caching)
    guard = GuardedBuild(gate, begun.layout.root, None, hooks, hooks)
    noted: list[str] = []
    assert prepare_compiler_environment(begun, guard, cache, noted.append)["MAX_JOBS"] == "18"
    assert noted == []
    assert (
        prepare_compiler_environment(with_launcher(begun), guard, cache, noted.append)["MAX_JOBS"]
        == "4"
    )
    (sentence,) = noted
    assert sentence.startswith("CMAKE_CXX_COMPILER_LAUNCHER stays 'distcc', as you set it")


def test_a_build_without_a_guard_has_the_fixed_number(begun: BuildContext) -> None:
    noted: list[str] = []
    variables = prepare_compiler_environment(
        begun,
        GuardedBuild(),
        CompilerCache("ccache", variables={"CCACHE_DIR": "/cache"}),
        noted.append,
    )
    assert (variables["MAX_JOBS"], variables["CCACHE_DIR"]) == ("4", "/cache")
    assert not {name for name in variables if name.endswith("_LAUNCHER")}


def test_the_users_launcher_stays_and_the_number_is_the_fixed_one(begun: BuildContext) -> None:
    noted: list[str] = []
    variables = prepare_compiler_environment(
        with_launcher(begun), guarded(begun), CompilerCache(), noted.append
    )
    assert (variables["CMAKE_CXX_COMPILER_LAUNCHER"], variables["MAX_JOBS"]) == ("distcc", "4")
    (sentence,) = noted
    assert sentence.endswith("so it hides compilers from the guard: compiling 4 at a time")


def test_a_tree_without_a_gate_goes_on_at_the_fixed_number(begun: BuildContext) -> None:
    configure(begun, "")
    noted: list[str] = []
    assert (
        prepare_compiler_environment(begun, guarded(begun), CompilerCache(), noted.append)[
            "MAX_JOBS"
        ]
        == "4"
    )
    (sentence,) = noted
    assert "was configured without a gate for CXX and C (`invoke clean --kind trees`" in sentence


def test_no_more_are_started_than_ninja_can_hold_open(begun: BuildContext) -> None:
    resource = pytest.importorskip("resource")
    many = replace(
        begun, host=change_host(begun.host, resources={"memory": 2**40}), options=Options(jobs=256)
    )
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, before[1]))  # the usual one of Linux
    try:
        slots = int(
            prepare_compiler_environment(many, guarded(many), CompilerCache(), print)["MAX_JOBS"]
        )
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert 256 <= slots < 1000


def test_no_more_are_started_than_there_may_be_processes(begun: BuildContext) -> None:
    resource = pytest.importorskip("resource")
    many = replace(
        begun, host=change_host(begun.host, resources={"memory": 2**40}), options=Options(jobs=128)
    )
    before = resource.getrlimit(resource.RLIMIT_NPROC)
    most = max(2048, 2 * len(psutil.pids()))
    resource.setrlimit(resource.RLIMIT_NPROC, (most, before[1]))
    try:
        slots = int(
            prepare_compiler_environment(many, guarded(many), CompilerCache(), print)["MAX_JOBS"]
        )
    finally:
        resource.setrlimit(resource.RLIMIT_NPROC, before)
    assert slots <= most // 4


def test_what_the_user_asks_for_wins(begun: BuildContext) -> None:
    two = replace(begun, options=Options(jobs=2))
    assert (
        prepare_compiler_environment(two, guarded(two), CompilerCache(), print)["MAX_JOBS"] == "10"
    )


def test_a_package_that_knows_no_launchers_finds_stand_ins_first(begun: BuildContext) -> None:
    package = change_groups(begun.package, setup={"compilers": "path"})
    built = replace(
        begun, facts=replace(begun.facts, packages={**begun.facts.packages, "base": package})
    )
    variables = prepare_compiler_environment(built, guarded(built), CompilerCache(), print)
    first = Path(variables["PATH"].partition(":")[0])
    assert first == built.tree.folder / "bin"
    assert (first / "c++").stat().st_mode & 0o111


def with_cuda(begun: BuildContext, home: Path, compilers: Launch) -> BuildContext:
    """Return the job as one of CUDA, with a toolkit."""
    (home / "bin").mkdir(parents=True)
    (home / "bin/nvcc").write_text("#!/bin/sh\n")
    (home / "bin/nvcc").chmod(0o755)
    package = change_groups(begun.package, setup={"compilers": compilers})
    build = replace(begun.plan.build, variant="cu118", cuda="11.8")
    plan = replace(
        begun.plan,
        wheel=replace(begun.plan.wheel, build=build),
        variables={**begun.plan.variables, "CUDA_HOME": str(home)},
    )
    packages = {**begun.facts.packages, "base": package}
    return replace(begun, plan=plan, facts=replace(begun.facts, packages=packages))


@pytest.mark.parametrize(("compilers", "stands_in"), [("cmake", False), ("path", True)])
def test_nvcc_comes_by_the_gate_by_whatever_name_it_is_asked_for(
    begun: BuildContext, tmp_path: Path, compilers: Launch, stands_in: bool
) -> None:
    built = with_cuda(begun, tmp_path / "cuda", compilers)
    variables = prepare_compiler_environment(built, guarded(built), CompilerCache(), print)
    nvcc = Path(variables["PYTORCH_NVCC"])
    assert str(built.tree.folder / "gate") in nvcc.read_text()
    home = nvcc.parents[1] if stands_in else tmp_path / "cuda"
    assert Path(variables["CUDA_HOME"]) == home


def test_nvcc_goes_through_a_cache_that_knows_of_the_gate(
    begun: BuildContext, tmp_path: Path
) -> None:
    built = with_cuda(begun, tmp_path / "cuda", "path")
    gate = built.tree.folder / "gate"
    caching = {
        "CCACHE_DIR": "/cache",
        "CMAKE_CUDA_COMPILER_LAUNCHER": "/usr/bin/env;CCACHE_DEPEND=1;/ccache",
    }
    for hooks, cached in (
        (compiler_gate.gate_hooks(gate, caching), True),
        (compiler_gate.gate_hooks(gate, {}), False),
    ):
        guard = GuardedBuild(gate, built.layout.root, None, hooks, hooks)
        variables = prepare_compiler_environment(
            built, guard, CompilerCache("ccache", "/ccache", "4.13", caching), print
        )
        assert ("/ccache" in Path(variables["PYTORCH_NVCC"]).read_text()) is cached


long = pytest.mark.long

WHEEL, VISION, SHARED = f"wheel-{THIS}-cpu", f"vision-{THIS}-cpu", "wheel-cpu"
SORT = "src/sort.cpp"
# Compiles, but `sort.cpp` only when nobody holds it; on demand it is killed of it, once or always,
# or calls somebody.
COMPILER = """\
#!/bin/sh
case "$*" in *{sort}*)
  case "$*" in *" -E "*) ;; *)
    while [ -e '{folder}/hold' ]; do touch '{folder}/held'; sleep 0.05; done
    if [ -e '{folder}/port' ] && ! python3 -c "import socket
socket.create_connection(('127.0.0.1', $(cat '{folder}/port')), 5)" 2>/dev/null; then
      echo "fatal: unable to access 'https://code.example/x.git/': Could not resolve host: code.example" >&2
      exit 1
    fi
    if rm '{folder}/kill' 2>/dev/null || [ -e '{folder}/doom' ]; then kill -9 $$; fi
  esac
esac
exec c++ "$@"
"""


class Build:
    """The sample, with a compiler that can be held, and everything about its last build."""

    def __init__(self, sample: Sample) -> None:
        self.sample = sample
        self.hold, self.held, self.kill = (
            sample.folder / name for name in ("hold", "held", "kill")
        )
        compiler = sample.folder / "compiler" / "c++"
        compiler.parent.mkdir()
        compiler.write_text(COMPILER.format(sort=SORT, folder=sample.folder))
        compiler.chmod(0o755)
        sample.env["CXX"] = str(compiler)

    @property
    def tree(self) -> Path:
        (tree,) = (self.sample.home / ".torchmill" / "trees" / "v1.0.0").glob(f"{SHARED}-????????")
        return tree

    def forget_wheels(self) -> None:
        for folder in (self.sample.home / "dist", self.tree.with_name(WHEEL)):
            shutil.rmtree(folder, ignore_errors=True)

    def forget(self) -> None:
        """Keep the prepared tree, and nothing that was compiled in it."""
        self.forget_wheels()
        shutil.rmtree(self.tree / "source" / "build", ignore_errors=True)

    def forget_cache(self) -> None:
        for tool in ("ccache", "sccache"):
            shutil.rmtree(self.sample.cache / tool, ignore_errors=True)

    def forget_sort(self) -> None:
        """Keep all but `sort.cpp` compiled, and what is linked of it."""
        self.forget_cache()
        self.forget_wheels()
        for file in (self.tree / "source" / "build").rglob("sort.cpp.o"):
            file.unlink()

    @contextlib.contextmanager
    def begun(self) -> Iterator[subprocess.Popen[str]]:
        """Run nox, from the moment in which the compiler of `sort.cpp` is held."""
        self.forget_sort()
        self.held.unlink(missing_ok=True)
        self.hold.touch()
        with self.sample.start("-s", WHEEL) as running:
            try:
                until(lambda: self.held.exists() or running.poll() is not None, SORT, 120)
                assert running.poll() is None, running.communicate()[0]
                yield running
            finally:
                self.hold.unlink(missing_ok=True)
                running.kill()

    def manifest(self, package: str) -> dict[str, Any]:
        (name,) = [name for name in self.sample.wheels() if name.startswith(package)]
        return self.sample.manifest(name)

    def ran(self, session: str) -> list[UnitRun]:
        (file,) = (self.sample.home / ".torchmill" / "logs").glob(f"*-{session}.timeline.jsonl")
        records = [parse_record(line) for line in file.read_text(encoding="utf-8").splitlines()]
        return [record for record in records if isinstance(record, UnitRun)]


def gates(nox: subprocess.Popen[str]) -> str:
    """Return the folder that the gates of a running build meet their guard in."""
    for child in psutil.Process(nox.pid).children(recursive=True):
        try:
            folder = child.environ().get(GATE)
        except psutil.Error:
            continue
        if folder:
            return folder
    return pytest.fail("nothing of this build knows of a gate")


def guard_of(nox: subprocess.Popen[str]) -> psutil.Process:
    for child in psutil.Process(nox.pid).children(recursive=True):
        with contextlib.suppress(psutil.Error):  # it ended meanwhile
            if "millguard.service" in child.cmdline():
                return child
    return pytest.fail("this build has no guard")


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory, upstream: Path, envs: Path) -> Build:
    sample = fetched(tmp_path_factory.mktemp("guarded"), upstream, envs)
    built = Build(sample)
    done = sample.nox("-s", VISION)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "no memory guard" not in done.stderr, done.stderr
    return built


@long
def test_every_compile_and_link_passed_the_gate(build: Build) -> None:
    """The base is built by CMake and ninja, the dependent one by setuptools."""
    for session in (WHEEL, VISION):
        ran = build.ran(session)
        assert {unit.outcome for unit in ran} == {"done"}
        assert min(unit.peak for unit in ran) > 2**20
    source = build.tree / "source"
    files = (*source.glob("src/*.cpp"), *source.glob("python/*.cpp"))
    sources = {path.name for path in files} | {"switches.cpp"}
    compiled = [unit.key for unit in build.ran(WHEEL) if unit.family == "c++"]
    assert all(sum(f"/{name}" in f"/{key}" for key in compiled) == 1 for name in sources), compiled
    linked = [unit.key for unit in build.ran(WHEEL) if unit.family == "link"]
    assert all(sum(name in key for key in linked) == 1 for name in ("libtiny.so", "_C.")), linked
    assert [unit.family for unit in build.ran(VISION)] == ["c++", "link"]


@long
def test_the_manifest_tells_what_the_guard_saw(build: Build) -> None:
    record = build.manifest("tinytorch")
    guard = record["guard"]
    assert record["slots"] == str(4 * guard["cores"] + 2)
    assert 2**20 < guard["peak"] < guard["allowed"]
    assert guard["units"] == len(build.ran(WHEEL))
    assert (guard["pauses"], guard["reruns"], guard["kills"]) == (0, 0, 0)
    assert (build.sample.home / "dist" / guard["timeline"]).resolve().is_file()
    assert record["cpu_seconds"] > 0
    assert "peak_memory" not in record


@long
def test_other_jobs_and_memory_change_nothing_that_is_built(build: Build) -> None:
    done = build.sample.nox("-s", WHEEL, "--", "--jobs", "1", "--memory", "3 GiB")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "is up to date" in done.stderr


@long
@pytest.mark.skipif(not shutil.which("ccache"), reason="ccache is not installed")
def test_what_the_cache_has_passes_no_gate(build: Build) -> None:
    build.forget()
    done = build.sample.nox("-s", WHEEL)
    assert done.returncode == 0, done.stdout + done.stderr
    assert {unit.family for unit in build.ran(WHEEL)} == {"link"}


@long
def test_nothing_outlives_a_killed_nox(build: Build) -> None:
    with build.begun() as nox:
        folder, guard = gates(nox), guard_of(nox)
        assert any(
            "sort.cpp" in " ".join(process.cmdline())
            for process in processes.find_by_variable(GATE, folder)
        )
        nox.kill()
        nox.communicate()
        until(lambda: not processes.find_by_variable(GATE, folder))
        until(lambda: not guard.is_running() or guard.status() == psutil.STATUS_ZOMBIE)
        until(lambda: not Path(folder).exists())


@long
def test_nothing_outlives_ctrl_c(build: Build) -> None:
    with build.begun() as nox:
        folder, guard = gates(nox), guard_of(nox)
        nox.send_signal(signal.SIGINT)
        output, _ = nox.communicate(timeout=60)
    assert nox.returncode != 0
    assert "Traceback" not in output
    assert processes.find_by_variable(GATE, folder) == []
    assert not guard.is_running()
    assert not Path(folder).exists()


@long
def test_a_build_whose_guard_is_killed_ends_well(build: Build) -> None:
    with build.begun() as nox:
        guard_of(nox).kill()
        build.hold.unlink()
        output, _ = nox.communicate(timeout=120)
    assert nox.returncode == 0, output
    assert "the guard ended unexpectedly" in output
    assert "at a time from here on" in output
    assert build.manifest("tinytorch")["checks"]


@long
def test_too_little_memory_and_a_killed_compiler_are_told_and_cost_no_build(build: Build) -> None:
    build.forget_sort()
    build.kill.touch()
    done = build.sample.nox("-s", WHEEL, "--", "--memory", "1 MiB")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{SORT} was killed or ran out of memory (needed more than " in done.stderr
    assert "1.0 MiB are allowed" in done.stderr
    record = build.manifest("tinytorch")
    assert record["guard"]["kills"] == 1
    assert [unit.outcome for unit in build.ran(WHEEL) if SORT in unit.key] == ["killed", "done"]


@long
@pytest.mark.skipif(
    not choose_sandbox(CompilerCache(), {}, network_allowed=False).prefix,
    reason="no namespaces here",
)
def test_a_build_has_no_network_until_it_is_asked_for(build: Build) -> None:
    for name in ("causes.toml", "known_names.toml"):
        shutil.copy(ROOT / "build_configs" / name, build.sample.configs)
    build.forget_sort()
    port = build.sample.folder / "port"
    with socket.create_server(("127.0.0.1", 0)) as server:
        port.write_text(str(server.getsockname()[1]))
        try:
            sealed = build.sample.nox("-s", WHEEL)
            opened = build.sample.nox("-s", WHEEL, "--", "--network")
        finally:
            port.unlink()
    assert sealed.returncode == 1
    assert "Could not resolve host: code.example" in sealed.stderr
    assert f"to let this one download: nox -s {WHEEL} -- --network" in sealed.stderr
    assert opened.returncode == 0, opened.stdout + opened.stderr
    record = build.manifest("tinytorch")
    assert (record["network"], record["options"]) == ("open: --network", {})
    assert (
        compose_statement(record)["predicate"]["buildDefinition"]["internalParameters"]["network"]
        == "open"
    )
    build.forget_wheels()
    assert build.sample.nox("-s", WHEEL).returncode == 0
    record = build.manifest("tinytorch")
    assert record["network"] == "none"
    assert (
        compose_statement(record)["predicate"]["buildDefinition"]["internalParameters"]["network"]
        == "none"
    )


@long
def test_what_a_broken_run_copied_half_is_copied_again(build: Build) -> None:
    """Setuptools takes a copy for right that is newer than its original."""
    build.forget_wheels()
    assert build.sample.nox("-s", WHEEL).returncode == 0
    (copy,) = (build.tree / "source/build").glob("lib*/tinytorch/__init__.py")
    copy.write_text("")
    (build.tree / "unfinished").touch()
    build.forget_wheels()
    done = build.sample.nox("-s", WHEEL)
    assert done.returncode == 0, done.stdout + done.stderr
    assert not (build.tree / "unfinished").exists()


@long
def test_what_fits_not_even_alone_is_the_error_of_the_build(build: Build) -> None:
    build.forget_sort()
    doom = build.sample.folder / "doom"
    doom.touch()
    try:
        done = build.sample.nox("-s", WHEEL)
    finally:
        doom.unlink()
    assert done.returncode == 1
    output = done.stderr.rpartition("aborted")[2]
    assert f"{SORT} was killed or ran out of memory, even alone: it needed more than " in output
    assert "are allowed; give the machine, its container or its job more" in output
    assert "Traceback" not in done.stderr
    assert [unit.outcome for unit in build.ran(WHEEL) if SORT in unit.key][-1] == "killed"
