"""sccache under the guard: the launcher, a real server that compiles through a gate, shared caches."""

import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from guard_support.guards import until
from millguard import processes
from millguard.server import GATE

from tests.support import cache_servers
from tests.toolchain.test_compiler_cache import checkout, compile_in, script, site
from torchmill.core.stat_cache import StatCache
from torchmill.host.host import Host, HostPrograms, HostResources
from torchmill.toolchain import compiler_cache, remote_cache, sccache
from torchmill.toolchain.compiler_cache import CacheHits, CompilerCache

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no gate")

PROGRAMS = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])


def run(*argv: str, **variables: str) -> str:
    environ = {"PATH": os.environ["PATH"], **variables}
    return subprocess.run(argv, env=environ, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def compiler(tmp_path: Path) -> str:
    return script(
        tmp_path / "usr bin/g++", 'case "$1" in -print*) exit;; esac', 'echo "compiles $*"'
    )


@pytest.fixture
def program(tmp_path: Path) -> str:
    """Return a program in place of sccache that caches nothing."""
    return script(tmp_path / "opt/sccache", 'printf "cached: "', 'exec "$@"')


@pytest.fixture
def guard_folder(tmp_path: Path) -> Path:
    """Return a guard's folder, with a gate that prints a line."""
    script(tmp_path / "guard/gate", 'printf "by the gate: "', 'exec "$@"')
    return tmp_path / "guard"


def launch(
    tmp_path: Path, program: str, *argv: str, cached_compilers: tuple[str, ...], **variables: str
) -> str:
    """Run a compiler by the launcher that CMake calls; return the output."""
    variables_of_cache = sccache.place_sccache(
        program,
        cached_compilers,
        tmp_path / "stand ins",
        StatCache(tmp_path / "stat-caches").digest,
    )
    # sccache would run the steps of nvcc itself.
    assert "CMAKE_CUDA_COMPILER_LAUNCHER" not in variables_of_cache
    launcher = variables_of_cache["CMAKE_CXX_COMPILER_LAUNCHER"]
    assert variables_of_cache["CMAKE_C_COMPILER_LAUNCHER"] == launcher
    variables = {sccache.PROGRAM_VARIABLE: program, **variables}
    assert variables_of_cache[sccache.PROGRAM_VARIABLE] == program
    return run(launcher, *argv, **variables)


def test_compilers_under_sccache_go_through_the_gate(
    tmp_path: Path, program: str, compiler: str, guard_folder: Path
) -> None:
    output = launch(
        tmp_path,
        program,
        compiler,
        "-c",
        "a b.cpp",
        cached_compilers=(compiler,),
        MILLGUARD_GATE=str(guard_folder),
    )
    assert output == "cached: by the gate: compiles -c a b.cpp\n"


@pytest.mark.parametrize("gate", ["", "/not there"])
def test_without_a_guard_sccache_compiles_as_usual(
    tmp_path: Path, program: str, compiler: str, gate: str
) -> None:
    output = launch(
        tmp_path,
        program,
        compiler,
        "-c",
        "a.cpp",
        cached_compilers=(compiler,),
        MILLGUARD_GATE=gate,
    )
    assert output == "cached: compiles -c a.cpp\n"


def test_an_unlisted_compiler_goes_through_the_gate_and_is_not_cached(
    tmp_path: Path, program: str, compiler: str, guard_folder: Path
) -> None:
    gate = {"MILLGUARD_GATE": str(guard_folder)}
    assert (
        launch(tmp_path, program, compiler, "-c", cached_compilers=(), **gate)
        == "by the gate: compiles -c\n"
    )
    assert launch(tmp_path, program, compiler, "-c", cached_compilers=()) == "compiles -c\n"


def test_the_path_of_the_tree_reaches_the_compiler_and_not_sccache(
    tmp_path: Path, compiler: str
) -> None:
    """The map of an absolute path would be a part of sccache's key."""
    program = script(tmp_path / "sccache", 'shift; echo "asked for $*"; exec "$0.real" "$@"')
    script(tmp_path / "sccache.real", f"exec '{tmp_path}/stand ins{compiler}' \"$@\"")
    argv = (
        compiler,
        "-O2",
        "-ffile-prefix-map=/a b/source=.",
        "-ffile-prefix-map=..=.",
        "-c",
        "a.cpp",
    )
    lines = launch(tmp_path, program, *argv, cached_compilers=(compiler,)).splitlines()
    assert lines == [
        "asked for -O2 -ffile-prefix-map=..=. -c a.cpp",
        "compiles -O2 -ffile-prefix-map=..=. -c a.cpp -ffile-prefix-map=/a b/source=.",
    ]


def test_where_sccache_itself_fails_the_file_is_compiled_without_it(
    tmp_path: Path, compiler: str
) -> None:
    program = script(tmp_path / "sccache", "exit 2")
    argv = (compiler, "-ffile-prefix-map=/a=.", "-c", "a.cpp")
    output = launch(tmp_path, program, *argv, cached_compilers=(compiler,))
    assert output == "compiles -c a.cpp -ffile-prefix-map=/a=.\n"
    script(Path(compiler), "exit 3")  # the compiler itself fails
    with pytest.raises(subprocess.CalledProcessError) as caught:
        launch(
            tmp_path, script(tmp_path / "sccache", 'exec "$@"'), *argv, cached_compilers=(compiler,)
        )
    assert caught.value.returncode == 3


def test_a_stand_in_changes_with_its_compiler_alone(
    tmp_path: Path, program: str, compiler: str
) -> None:
    def write_stand_in(folder: str) -> Path:
        sccache.place_sccache(
            program, [compiler], tmp_path / folder, StatCache(tmp_path / "stat-caches").digest
        )
        return Path(f"{tmp_path / folder}{compiler}")

    stand_in = write_stand_in("stand ins")
    before = stand_in.read_text()
    written = stand_in.stat().st_mtime_ns
    assert write_stand_in("stand ins").stat().st_mtime_ns == written
    assert write_stand_in("another place").read_text() == before
    stand_in.write_bytes(b"\xff")  # a damaged stand-in is written anew
    assert write_stand_in("stand ins").read_text() == before
    script(Path(compiler), "echo a newer one")
    assert write_stand_in("stand ins").read_text() != before


def test_without_room_for_stand_ins_nothing_is_cached(tmp_path: Path, program: str) -> None:
    host = Host(
        "x86_64",
        "linux",
        HostResources(cores=2, memory=2**33),
        programs=HostPrograms(paths={"sccache": program}),
    )
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept/stand-ins").touch()
    notes: list[str] = []
    assert compiler_cache.set_up_cache(site(tmp_path, host, notes)) == CompilerCache()
    assert notes[0].startswith(f"{tmp_path}/kept/stand-ins cannot be written (")


@pytest.mark.parametrize(
    ("output", "version"),
    [
        ("sccache 0.16.0\n", "0.16.0"),
        ("sccache 0.10.0 (f1a2b3c)\n", "0.10.0"),
        ("sccache of ours\n", None),
    ],
)
def test_unusual_versions_of_sccache_are_accepted(
    tmp_path: Path, output: str, version: str | None
) -> None:
    host = Host(
        "x86_64",
        "linux",
        HostResources(2, 2**33),
        programs=HostPrograms(paths={"sccache": script(tmp_path / "sccache", f"echo '{output}'")}),
    )
    shared = {"TORCHMILL_CACHE": "s3://bucket"}
    cache = compiler_cache.set_up_cache(
        replace(site(tmp_path, host, [], **shared), cache_folder=tmp_path / "kept")
    )
    assert (cache.tool, cache.version) == ("sccache", version)


def test_the_server_listens_where_its_address_fits() -> None:
    assert sccache.server_variables(Path("/g")) == {"SCCACHE_SERVER_UDS": "/g/sccache"}
    assert sccache.server_variables(Path("/g", "é" * 50)) == {}


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        (
            "rediss://me:s%3At@cache.example/2",
            {
                "SCCACHE_REDIS_ENDPOINT": "rediss://cache.example",
                "SCCACHE_REDIS_USERNAME": "me",
                "SCCACHE_REDIS_PASSWORD": "s:t",
                "SCCACHE_REDIS_DB": "2",
                "SCCACHE_MULTILEVEL_CHAIN": "disk,redis",
            },
        ),
        (
            "https://cache.example:8443/a/b/#read-only",
            {
                "SCCACHE_WEBDAV_ENDPOINT": "https://cache.example:8443/a/b",
                "SCCACHE_WEBDAV_RW_MODE": "READ_ONLY",
                "SCCACHE_MULTILEVEL_CHAIN": "disk,webdav",
            },
        ),
        (
            "s3://Wheels/torch?region=eu-central-1",
            {
                "SCCACHE_BUCKET": "Wheels",
                "SCCACHE_S3_KEY_PREFIX": "torch",
                "SCCACHE_REGION": "eu-central-1",
                "SCCACHE_S3_USE_SSL": "true",
                "SCCACHE_MULTILEVEL_CHAIN": "disk,s3",
            },
        ),
        (
            "gha",
            {
                "SCCACHE_GHA_ENABLED": "on",
                "ACTIONS_CACHE_SERVICE_V2": "on",
                "SCCACHE_MULTILEVEL_CHAIN": "disk,gha",
            },
        ),
    ],
)
def test_each_shared_cache_has_its_variables_of_sccache(
    setting: str, expected: Mapping[str, str]
) -> None:
    shared = remote_cache.parse_remote(setting)
    without_shared = sccache.sccache_variables("0.16.0", Path("/root"), Path("/kept"))
    with_shared = sccache.sccache_variables("0.16.0", Path("/root"), Path("/kept"), shared)
    policy = {"SCCACHE_MULTILEVEL_WRITE_ERROR_POLICY": "ignore"}
    assert {name: value for name, value in with_shared.items() if name not in without_shared} == {
        **expected,
        **policy,
    }
    of_old_release = sccache.sccache_variables("0.14.0", Path("/root"), Path("/kept"), shared)
    assert of_old_release.keys() == with_shared.keys() - {"SCCACHE_MULTILEVEL_CHAIN", *policy}


@pytest.fixture(scope="module")
def real_host() -> Host:
    programs = {name: shutil.which(name, path=PROGRAMS) for name in ("sccache", "g++")}
    if not all(programs.values()):
        pytest.skip("sccache (it is in requirements-dev.txt) and g++ are not both installed")
    return Host(
        "x86_64",
        "linux",
        HostResources(cores=2, memory=2**33),
        programs=HostPrograms(paths={"sccache": str(programs["sccache"])}),
    )


@contextmanager
def serving(
    folder: Path, host: Host, cache_folder: Path, notes: list[str], **environ: str
) -> Iterator[tuple[CompilerCache, dict[str, str]]]:
    """Yield the cache and the environment of a build, with its own server and a gate that counts."""
    guard_folder = cache_folder / f"g{len(list(cache_folder.glob('g*')))}"
    script(guard_folder / "gate", 'echo "$*" >> "$MILLGUARD_GATE/log"', 'exec "$@"')
    cache = compiler_cache.set_up_cache(
        replace(site(folder, host, notes, **environ), cache_folder=cache_folder)
    )
    variables = {"PATH": os.environ["PATH"], **environ, **cache.variables}
    variables |= {**sccache.server_variables(guard_folder), GATE: str(guard_folder)}
    if sccache.ADDRESS_VARIABLE not in variables:
        pytest.skip("the folder for temporary files has too long a path for a socket")
    try:
        yield cache, sccache.start_server(cache.program, variables, notes.append)
    finally:
        processes.end_processes(processes.find_by_variable(GATE, str(guard_folder)))
        assert processes.find_by_variable(GATE, str(guard_folder)) == []


@pytest.fixture
def cache_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("k")


def compile_checkout(folder: Path, environ: Mapping[str, str]) -> bytes:
    return compile_in(
        checkout(folder), environ, environ["CMAKE_CXX_COMPILER_LAUNCHER"], compiler=GXX
    )


GXX = shutil.which("g++") or "g++"


def gate_compiles(environ: Mapping[str, str]) -> list[str]:
    """Return the commands of the compiles that went through the gate."""
    lines = Path(environ[GATE], "log").read_text().splitlines()
    return [line for line in lines if " -c " in line and " -E " not in line]


def test_another_checkout_hits_and_nothing_of_its_place_is_in_the_object(
    real_host: Host, tmp_path: Path, cache_folder: Path
) -> None:
    notes: list[str] = []
    objects = [compile_in(checkout(tmp_path / "plain"), {})]
    counts = []
    for name in ("one", "at/another/depth"):
        with serving(tmp_path / name, real_host, cache_folder, notes) as (cache, environ):
            objects.append(compile_checkout(tmp_path / name, environ))
            counts.append(
                (len(gate_compiles(environ)), compiler_cache.read_cache_hits(cache, environ))
            )
    (first_compiles, first), (second_compiles, second) = counts
    assert (first_compiles, second_compiles) == (1, 0)
    assert first is not None
    assert second == CacheHits(first.tool, 1, 0)
    assert first.tool.startswith("sccache 0.")
    assert len(set(objects)) == 1  # the same without a cache
    assert bytes(tmp_path) not in objects[0]
    assert notes == []


def test_a_real_server_is_the_builds_own(
    real_host: Host, tmp_path: Path, cache_folder: Path
) -> None:
    (tmp_path / "a.cpp").write_text("int a;\n")
    with serving(tmp_path, real_host, cache_folder, []) as (_, environ):
        launcher = environ["CMAKE_CXX_COMPILER_LAUNCHER"]
        clients = [
            subprocess.Popen(
                [launcher, GXX, "-c", "a.cpp", "-o", f"{number}.o"], cwd=tmp_path, env=environ
            )
            for number in range(6)
        ]
        assert [client.wait(60) for client in clients] == [0] * 6
        assert [client.name() for client in processes.find_by_variable(GATE, environ[GATE])] == [
            "sccache"
        ]
        assert Path(environ[sccache.ADDRESS_VARIABLE]).is_socket()


@pytest.mark.parametrize("damage", ["cut off", "changed"])
def test_a_damaged_entry_is_compiled_anew(
    real_host: Host, tmp_path: Path, cache_folder: Path, damage: str
) -> None:
    with serving(tmp_path / "one", real_host, cache_folder, []) as (_, environ):
        first = compile_checkout(tmp_path / "one", environ)
    entries = [file for file in (cache_folder / "sccache").rglob("*") if file.is_file()]
    assert entries
    for file in entries:
        content = bytearray(file.read_bytes())
        if damage == "cut off":
            del content[len(content) // 2 :]
        else:
            content[len(content) // 3] ^= 0xFF
        file.write_bytes(content)
    with serving(tmp_path / "two", real_host, cache_folder, []) as (_, environ):
        assert compile_checkout(tmp_path / "two", environ) == first
        assert len(gate_compiles(environ)) == 1


def build_on_two_machines(
    tmp_path: Path, real_host: Host, cache_folder: Path, setting: str, **environ: str
) -> list[CacheHits | None]:
    """Build twice, as machines that have only a shared cache in common."""
    hits = []
    for name in ("one", "two"):
        own_folder = cache_folder / name
        own_folder.mkdir()
        notes: list[str] = []
        with serving(
            tmp_path / name, real_host, own_folder, notes, TORCHMILL_CACHE=setting, **environ
        ) as (
            cache,
            build_environ,
        ):
            compile_checkout(tmp_path / name, build_environ | environ)
            hits.append(compiler_cache.read_cache_hits(cache, build_environ))
        assert notes == []
    return hits


def test_machines_share_a_cache_over_redis(
    real_host: Host, tmp_path: Path, cache_folder: Path
) -> None:
    with cache_servers.redis("--requirepass", "s:cret") as address:
        first, second = build_on_two_machines(
            tmp_path, real_host, cache_folder, f"redis://default:s%3Acret@{address}/3"
        )
    assert first is not None
    assert (first.hits, first.misses, first.remote) == (0, 1, 0)
    assert second == CacheHits(first.tool, 1, 0, 1, 0, f"redis://{address}/3")


def test_machines_share_a_cache_over_webdav(
    real_host: Host, tmp_path: Path, cache_folder: Path
) -> None:
    with cache_servers.apache() as address:
        first, second = build_on_two_machines(
            tmp_path, real_host, cache_folder, f"http://{address}"
        )
    assert first is not None
    assert (first.hits, first.misses, first.remote) == (0, 1, 0)
    assert second == CacheHits(first.tool, 1, 0, 1, 0, f"http://{address}")


def test_sccache_is_off_while_its_shared_cache_does_not_answer(
    real_host: Host, tmp_path: Path, cache_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For each file, sccache itself would wait a minute for the cache."""
    monkeypatch.setattr(sccache, "WATCH_INTERVAL_SECONDS", 0.05)
    notes: list[str] = []
    port = cache_servers.free_port()
    shared = remote_cache.parse_remote(f"redis://127.0.0.1:{port}")
    with serving(tmp_path, real_host, cache_folder, notes) as (_, environ):
        marker = Path(environ[GATE], sccache.DISABLED_FILE)
        with sccache.watch_shared_cache(shared, {}, marker.parent, notes.append):
            until(marker.exists)
            assert compile_checkout(tmp_path / "one", environ)
            with socket.create_server(("127.0.0.1", port)):
                until(lambda: not marker.exists())
                compile_checkout(tmp_path / "two", environ)
                statistics = sccache.await_statistics(environ[sccache.PROGRAM_VARIABLE], environ)
    assert statistics is not None
    # The first file was compiled without sccache.
    assert sccache.count_sccache_hits(statistics)[:2] == (0, 1)
    (note,) = notes
    assert note.startswith(f"{shared} no longer answers (")


def test_a_server_that_cannot_start_with_a_shared_cache_starts_alone(tmp_path: Path) -> None:
    notes: list[str] = []
    needs_none = (
        '[ -z "$SCCACHE_REDIS_ENDPOINT" ] || { echo "sccache: error: no Redis" >&2; exit 2; }'
    )
    program = script(tmp_path / "sccache", needs_none)
    with_shared = sccache.sccache_variables(
        "0.16.0", tmp_path, tmp_path, remote_cache.parse_remote("redis://cache.example")
    )
    without_shared = sccache.sccache_variables("0.16.0", tmp_path, tmp_path)
    environ = {"PATH": os.environ["PATH"], sccache.PROGRAM_VARIABLE: program}
    assert sccache.start_server(program, {**environ, **with_shared}, notes.append) == {
        **environ,
        **without_shared,
    }
    assert notes[0].startswith("sccache cannot use the shared cache (")
    assert "sccache: error: no Redis" in notes[0]


def test_a_server_that_cannot_start_at_all_stops_nothing(tmp_path: Path) -> None:
    for program in (script(tmp_path / "sccache", "exit 2"), str(tmp_path / "not there")):
        notes: list[str] = []
        environ = {"PATH": os.environ["PATH"], sccache.PROGRAM_VARIABLE: program}
        assert sccache.PROGRAM_VARIABLE not in sccache.start_server(program, environ, notes.append)
        assert notes[0].startswith("sccache does not start (")


class Bucket(BaseHTTPRequestHandler):
    """As much of S3 as a cache uses. Any signed request is accepted."""

    objects: dict[str, bytes]

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name is the base class's
        """Say nothing."""

    def do_PUT(self) -> None:
        signed = self.headers.get("Authorization", "").startswith("AWS4-HMAC-SHA256 Credential=")
        content = self.rfile.read(int(self.headers["Content-Length"]))
        if signed:
            self.objects[self.path] = content
        self._answer(b"" if signed else None)

    def do_GET(self) -> None:
        self._answer(self.objects.get(self.path))

    def _answer(self, content: bytes | None) -> None:
        self.send_response(404 if content is None else 200)
        self.send_header("Content-Length", str(len(content or b"")))
        self.end_headers()
        self.wfile.write(content or b"")


def test_machines_share_a_bucket(real_host: Host, tmp_path: Path, cache_folder: Path) -> None:
    objects: dict[str, bytes] = {}
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (Bucket,), {"objects": objects}))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        setting = f"s3://wheels/torch?endpoint=http://127.0.0.1:{server.server_address[1]}"
        keys = {"AWS_ACCESS_KEY_ID": "me", "AWS_SECRET_ACCESS_KEY": "secret"}
        first, second = build_on_two_machines(tmp_path, real_host, cache_folder, setting, **keys)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    assert first is not None
    assert (first.hits, first.misses, first.remote) == (0, 1, 0)
    assert second == CacheHits(first.tool, 1, 0, 1, 0, "s3://wheels/torch")
    assert all(path.startswith("/wheels/torch/") for path in objects)
