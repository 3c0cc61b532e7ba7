"""The compiler cache of a build with ccache, shared caches, and the identity of compilers."""

import os
import shutil
import socket
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support import cache_servers
from tests.support.hosts import change_host
from tests.support.refusals import refused
from torchmill.commands.report import recording
from torchmill.core.errors import ConfigError
from torchmill.core.stat_cache import StatCache
from torchmill.host.compilers import _programs_behind, chosen_compilers, digest_compiler
from torchmill.host.host import Host, HostResources
from torchmill.toolchain import compiler_cache, remote_cache
from torchmill.toolchain.compiler_cache import CacheHits, CacheSite, CompilerCache
from torchmill.toolchain.remote_cache import RemoteCache

BARE = Host("x86_64", "linux", HostResources(cores=2, memory=2**33))

FEATURES = "file-storage http-storage redis+unix-storage redis-storage"

CLEAN = {"PATH": os.environ["PATH"], "CCACHE_CONFIGPATH": "/dev/null"}

MAPS = (
    "-ffile-prefix-map={source}=.",
    "-ffile-prefix-map=..=.",
    "-ffile-prefix-map={source}/build/=",
)


def script(file: Path, *lines: str) -> str:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("\n".join(["#!/bin/sh", *lines, ""]), encoding="utf-8")
    file.chmod(0o755)
    return str(file)


def host_with_tools(folder: Path, *tools: str, features: str = FEATURES) -> Host:
    """Return a host whose tools do nothing but print their versions."""
    outputs = {
        "ccache": f"ccache version 4.7.5\\nFeatures: {features}",
        "sccache": "sccache 0.16.0",
    }
    return change_host(
        BARE,
        programs={
            "paths": {
                tool: script(folder / "bin" / tool, f"printf '{outputs[tool]}\\n'")
                for tool in tools
            }
        },
    )


def site(folder: Path, host: Host, notes: list[str], **environ: str) -> CacheSite:
    """Return the site of a build on a host; sccache cannot be installed there."""
    return CacheSite(
        host=host,
        root=folder,
        cache_folder=folder / "kept",
        log=folder / "logs/it.ccache",
        environ=CLEAN | environ,
        note=notes.append,
        digest=StatCache(folder / "stat-cache.json").digest,
        provide_sccache=lambda: None,
    )


def choose_cache(folder: Path, host: Host, **environ: str) -> tuple[str, str, str]:
    """Return the tool of a build's cache, its shared cache, and the notes."""
    notes: list[str] = []
    cache = compiler_cache.set_up_cache(site(folder, host, notes, **environ))
    return cache.tool, str(cache.shared or ""), "; ".join(notes)


def test_ccache_goes_before_sccache(tmp_path: Path) -> None:
    assert choose_cache(tmp_path, host_with_tools(tmp_path, "ccache", "sccache")) == (
        "ccache",
        "",
        "",
    )
    assert choose_cache(tmp_path, host_with_tools(tmp_path, "sccache")) == ("sccache", "", "")
    assert choose_cache(tmp_path, replace(BARE, system="windows")) == ("", "", "")


def test_no_cache_at_all_is_a_choice(tmp_path: Path) -> None:
    cache = compiler_cache.set_up_cache(
        site(tmp_path, host_with_tools(tmp_path, "ccache"), [], TORCHMILL_CACHE="none")
    )
    assert cache == CompilerCache(variables={"CCACHE_DISABLE": "1"})


def test_a_shared_cache_is_used_by_the_tool_that_supports_it(tmp_path: Path) -> None:
    host_with_both = host_with_tools(tmp_path, "ccache", "sccache")
    host_with_sccache = host_with_tools(tmp_path / "s", "sccache")
    folder = f"file://{tmp_path}"
    assert choose_cache(tmp_path, host_with_both, TORCHMILL_CACHE=folder) == ("ccache", folder, "")
    assert choose_cache(tmp_path, host_with_both, TORCHMILL_CACHE="s3://bucket/x") == (
        "sccache",
        "s3://bucket/x",
        "ccache 4.7.5 does not support s3://bucket/x: using sccache instead",
    )
    assert choose_cache(tmp_path, host_with_sccache, TORCHMILL_CACHE="s3://bucket/x") == (
        "sccache",
        "s3://bucket/x",
        "",
    )
    on_windows = replace(host_with_sccache, system="windows")
    assert choose_cache(tmp_path, on_windows, TORCHMILL_CACHE="s3://bucket/x") == (
        "sccache",
        "s3://bucket/x",
        "",
    )
    assert choose_cache(tmp_path, host_with_sccache, TORCHMILL_CACHE=folder) == (
        "sccache",
        "",
        f"sccache does not support {folder}: building without the shared cache",
    )


def test_a_storage_that_this_ccache_lacks_is_left_to_sccache_or_not_used(tmp_path: Path) -> None:
    """A ccache fails in every compile if it is given a kind of storage that it does not know."""
    host = host_with_tools(tmp_path, "ccache", features="file-storage http-storage")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"redis://127.0.0.1:{listener.getsockname()[1]}"
        tool, shared, note = choose_cache(tmp_path, host, TORCHMILL_CACHE=address)
    assert (tool, shared) == ("ccache", "")
    assert note.endswith(
        f"ccache 4.7.5 does not support {address}: building without the shared cache"
    )


@pytest.mark.parametrize(
    "setting", ["redis://127.0.0.1:{port}", "http://127.0.0.1:{port}/x", "file:///no/such"]
)
def test_a_build_goes_on_without_a_shared_cache_that_does_not_answer(
    tmp_path: Path, setting: str
) -> None:
    setting = setting.format(port=cache_servers.free_port())
    tool, shared, note = choose_cache(
        tmp_path, host_with_tools(tmp_path, "ccache"), TORCHMILL_CACHE=setting
    )
    assert (tool, shared) == ("ccache", "")
    assert note.startswith(f"{setting} cannot be reached (")
    assert note.endswith("): building without the shared cache")


def test_an_invalid_setting_of_a_shared_cache_is_refused(tmp_path: Path) -> None:
    with refused("invalid-cache-setting"):
        choose_cache(tmp_path, host_with_tools(tmp_path, "ccache"), TORCHMILL_CACHE="ftp://x")


def test_ccache_gets_the_folder_of_all_trees(tmp_path: Path) -> None:
    host = host_with_tools(tmp_path, "ccache")
    compilers = Path(
        compiler_cache.set_up_cache(site(tmp_path, host, [])).variables["CCACHE_EXTRAFILES"]
    )
    content = compilers.read_bytes()
    compilers.write_bytes(b"\xff")  # a damaged list is written anew
    variables = dict(compiler_cache.set_up_cache(site(tmp_path, host, [])).variables)
    assert Path(variables.pop("CCACHE_EXTRAFILES")) == compilers
    assert compilers.parent == tmp_path / "kept/compilers"
    assert compilers.read_bytes() == content
    assert variables == {
        "CCACHE_DIR": f"{tmp_path}/kept/ccache",
        "CCACHE_BASEDIR": str(tmp_path),
        "CCACHE_NOHASHDIR": "1",
        "CCACHE_COMPILERCHECK": "content",
        "CCACHE_SLOPPINESS": "time_macros,locale",
        "CCACHE_MAXSIZE": "30G",
        "CCACHE_STATSLOG": f"{tmp_path}/logs/it.ccache",
        "CMAKE_C_COMPILER_LAUNCHER": host.programs.paths["ccache"],
        "CMAKE_CXX_COMPILER_LAUNCHER": host.programs.paths["ccache"],
    }


@pytest.mark.parametrize(
    ("version", "cuda", "is_cached"),
    [
        ("4.7.5", "11.8", False),
        ("4.12.3", "11.8", True),
        ("4.13", "10.2", True),
        ("4.13", "9.0", False),  # nvcc lists its dependencies in a call that ccache does not see
    ],
)
def test_nvcc_goes_through_ccache_versions_that_use_its_dependencies(
    version: str, cuda: str, is_cached: bool
) -> None:
    program = compiler_cache.CcacheProgram("/ccache", version, frozenset())
    variables = compiler_cache.nvcc_variables(program, cuda)
    assert variables == (
        {"CMAKE_CUDA_COMPILER_LAUNCHER": "/usr/bin/env;CCACHE_DEPEND=1;/ccache"}
        if is_cached
        else {}
    )


def test_nvcc_is_cached_in_builds_with_cuda(tmp_path: Path) -> None:
    host = host_with_tools(tmp_path, "ccache")
    script(tmp_path / "bin/ccache", "echo ccache version 4.13")
    for toolkit, is_cached in ((None, False), ("12.4", True)):
        cache = compiler_cache.set_up_cache(replace(site(tmp_path, host, []), cuda=toolkit))
        assert ("CMAKE_CUDA_COMPILER_LAUNCHER" in cache.variables) is is_cached


@pytest.mark.parametrize(
    ("version", "variable"),
    [("4.6.3", "CCACHE_SECONDARY_STORAGE"), ("4.7.5", "CCACHE_REMOTE_STORAGE")],
)
def test_each_ccache_gets_its_own_variable_for_a_shared_cache(version: str, variable: str) -> None:
    program = compiler_cache.CcacheProgram("/ccache", version, frozenset())
    shared = remote_cache.parse_remote("http://u:p%40@example.com:8080/a/?layout=bazel#read-only")
    assert shared is not None
    variables = compiler_cache.ccache_variables(program, Path("/root"), Path("/kept"), shared)
    assert variables[variable] == (
        "http://u:p%40@example.com:8080/a|connect-timeout=1000|operation-timeout=5000|layout=bazel|read-only"
    )


def test_parts_may_lie_in_any_folder_and_get_what_the_local_cache_has(tmp_path: Path) -> None:
    """The real ccache would end an address at a space, and its path at a bar."""
    if shutil.which("ccache") is None:
        pytest.skip("there is no ccache here")
    parts = tmp_path / "my ü%20 parts|x"
    (tmp_path / "a.c").write_text("int a;")
    for part in (parts / "1", parts / "2"):
        part.mkdir(parents=True)
        host = host_with_tools(tmp_path, "ccache")
        host = change_host(
            host,
            programs={"paths": {**host.programs.paths, "ccache": shutil.which("ccache") or ""}},
        )
        site_with_parts = replace(
            site(tmp_path, host, []), parts=(RemoteCache("file", path=str(part)),)
        )
        cache = compiler_cache.set_up_cache(site_with_parts)
        argv = [cache.program, "gcc", "-c", "a.c", "-o", "a.o"]
        subprocess.run(argv, cwd=tmp_path, env={**os.environ, **cache.variables}, check=True)
        assert list(part.glob("??/*")), "both folders have the object"


@pytest.mark.parametrize(
    ("output", "version"),
    [
        ("ccache version 4.7.5\nFeatures: x\n", "4.7.5"),
        ("ccache version 4.12\n", "4.12"),
        ("ccache?", None),
    ],
)
def test_the_version_is_read(tmp_path: Path, output: str, version: str | None) -> None:
    assert (
        compiler_cache.probe_ccache(script(tmp_path / "ccache", f"printf '{output}'")).version
        == version
    )


def test_a_cache_folder_that_cannot_be_written_is_noted(tmp_path: Path) -> None:
    (tmp_path / "kept").touch()  # in place of the folder
    for tool in ("ccache", "sccache"):
        chosen_tool, _, note = choose_cache(tmp_path, host_with_tools(tmp_path / tool, tool))
        assert chosen_tool == ""
        assert note.startswith(f"{tmp_path}/kept/{tool} cannot be written (")
        assert note.endswith("XDG_CACHE_HOME=DIR gives it another place")


def test_parts_are_refused_if_the_cache_folder_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "kept").touch()  # in place of the folder
    host = host_with_tools(tmp_path, "ccache", features="file-storage")
    parts = (RemoteCache("file", path=str(tmp_path / "parts")),)
    with refused("parts-need-ccache") as caught:
        compiler_cache.set_up_cache(replace(site(tmp_path, host, []), parts=parts))
    assert str(tmp_path / "kept/ccache") in str(caught.value)


def test_hits_are_counted_and_reported(tmp_path: Path) -> None:
    log = [
        "# a.cpp",
        "direct_cache_hit",
        "local_storage_hit",
        "# b.cpp",
        "cache_miss",
        "remote_storage_timeout",
    ]
    log += ["# c.cpp", "preprocessed_cache_hit", "remote_storage_hit"]
    hits = CacheHits(
        "ccache 4.7.5",
        *compiler_cache.count_ccache_hits(f"{line}\n" for line in log),
        shared="redis://c",
    )
    sentence = "ccache 4.7.5: 2 of 3 hits (67%), 1 of them in redis://c; redis://c failed once"
    assert str(hits) == sentence
    timeline = tmp_path / "v1-wheel.timeline.jsonl"
    compiler_cache.record_hits(hits, timeline, 1.0)
    assert not timeline.exists()  # a build without a guard has no timeline
    timeline.write_text(
        '{"record":"moment","at":2.0,"used":1,"allowed":2,"running":1,"waiting":0,"paused":0}\n'
    )
    compiler_cache.record_hits(hits, timeline, 1.0)
    assert (
        f"  cache: {sentence}"
        in recording.summarize_recording(recording.read_timeline(timeline)).splitlines()
    )


@pytest.fixture
def real_host() -> Host:
    programs = {name: shutil.which(name) for name in ("ccache", "g++")}
    if not all(programs.values()):
        pytest.skip("ccache and g++ are not both installed")
    return change_host(BARE, programs={"paths": {"ccache": str(programs["ccache"])}})


def checkout(folder: Path) -> Path:
    """Make a tree like CMake's: a generated file includes the source by its absolute path."""
    source = folder / ".torchmill/trees/v1/wheel-cpu-12345678/source"
    (source / "include").mkdir(parents=True)
    (source / "build").mkdir()
    (source / "include/a.h").write_text("inline const char* header() { return __FILE__; }\n")
    (source / "a.cpp").write_text(
        '#include "a.h"\nconst char* a() { return __FILE__; }\nconst char* b() { return header(); }\n'
    )
    (source / "build/a.AVX2.cpp").write_text(f'#include "{source}/a.cpp"\n')
    return source


def compile_in(
    source: Path, variables: Mapping[str, str], *launcher: str, compiler: str = "g++"
) -> bytes:
    """Compile as a build does, in its folder and with absolute paths; return the object."""
    maps = [option.format(source=source) for option in MAPS]
    argv = [*launcher, compiler, "-g", *maps, f"-I{source}/include", "-o", "a.o", "-c"]
    environ = CLEAN | dict(variables)
    subprocess.run(
        [*argv, f"{source}/build/a.AVX2.cpp"], cwd=source / "build", env=environ, check=True
    )
    return (source / "build/a.o").read_bytes()


def set_up(folder: Path, host: Host, cache_folder: Path, **environ: str) -> CompilerCache:
    """Set up the cache of a build, for which nothing is noted."""
    notes: list[str] = []
    cache = compiler_cache.set_up_cache(
        replace(site(folder, host, notes, **environ), cache_folder=cache_folder)
    )
    assert notes == []
    return cache


def build(folder: Path, host: Host, cache_folder: Path, **environ: str) -> tuple[bytes, CacheHits]:
    """Compile in a new checkout; return the object and the hits of the cache."""
    cache = set_up(folder, host, cache_folder, **environ)
    object_code = compile_in(
        checkout(folder), {**cache.variables, **environ}, host.programs.paths["ccache"]
    )
    hits = compiler_cache.read_cache_hits(cache, cache.variables)
    assert hits is not None
    return object_code, hits


def test_another_checkout_hits_and_nothing_of_its_place_is_in_the_object(
    real_host: Host, tmp_path: Path
) -> None:
    cache_folder = tmp_path / "kept"
    plain = compile_in(checkout(tmp_path / "plain"), {})
    first, missed = build(tmp_path / "one", real_host, cache_folder, LC_ALL="C")
    second, hit = build(tmp_path / "at/another/depth", real_host, cache_folder, LC_ALL="C.UTF-8")
    assert (missed.hits, missed.misses) == (0, 1)
    assert (hit.hits, hit.misses) == (1, 0)
    assert first == second == plain  # the same with a cache and without
    assert bytes(tmp_path) not in plain


def test_without_our_variables_it_would_not_hit(real_host: Host, tmp_path: Path) -> None:
    log = tmp_path / "log"
    variables = {"CCACHE_DIR": str(tmp_path / "kept"), "CCACHE_STATSLOG": str(log)}
    for name in ("one", "two"):
        compile_in(checkout(tmp_path / name), variables, real_host.programs.paths["ccache"])
    assert compiler_cache.count_ccache_hits(log.read_text().splitlines())[:2] == (0, 2)


def test_another_compiler_of_the_same_path_hits_nothing(real_host: Host, tmp_path: Path) -> None:
    """A compiler is another if its file changes, or a program that it starts."""
    gxx = str(shutil.which("g++"))
    compiler = tmp_path / "cc/c++"
    cc1plus = tmp_path / "cc/cc1plus"
    script(cc1plus, "# 1")
    answer = f'case "$1" in -print-prog-name=cc1plus) echo {cc1plus}; exit;; esac'
    source = checkout(tmp_path)
    counts = []
    for lines in ((answer, f'exec {gxx} "$@"'), (answer, f'exec {gxx} -O1 "$@"'), None, None):
        if lines is None:
            script(cc1plus, "# 2")
        else:
            script(compiler, *lines)
        cache = set_up(tmp_path, real_host, tmp_path / "kept", CXX=str(compiler))
        compile_in(
            source, cache.variables, real_host.programs.paths["ccache"], compiler=str(compiler)
        )
        hits = compiler_cache.read_cache_hits(cache, cache.variables)
        assert hits is not None
        counts.append((hits.hits, hits.misses))
    assert counts == [(0, 1), (0, 1), (0, 1), (1, 0)]


def test_a_setting_that_nvcc_reads_itself_makes_another_object(
    real_host: Host, tmp_path: Path
) -> None:
    """A program of the name nvcc is nvcc to ccache; this one reads its variable as the real one does."""
    script(tmp_path / "nvcc", 'exec g++ -x c++ $NVCC_APPEND_FLAGS "$@"')
    (tmp_path / "a.cu").write_text("int value() { return VALUE; }\n")
    objects = []
    counts = []
    for value in ("-DVALUE=1", "-DVALUE=2", "-DVALUE=1"):
        settings = {"NVCC_APPEND_FLAGS": value}
        place = replace(site(tmp_path, real_host, []), nvcc_settings=settings)
        cache = compiler_cache.set_up_cache(place)
        argv = [cache.program, str(tmp_path / "nvcc"), "-o", "a.o", "-c", "a.cu"]
        environ = CLEAN | dict(cache.variables) | settings
        subprocess.run(argv, cwd=tmp_path, env=environ, check=True)
        objects.append((tmp_path / "a.o").read_bytes())
        hits = compiler_cache.read_cache_hits(cache, cache.variables)
        assert hits is not None
        counts.append((hits.hits, hits.misses))
    assert counts == [(0, 1), (0, 1), (1, 0)]
    assert objects[0] == objects[2] != objects[1]


def entries(folder: Path) -> list[Path]:
    return [
        file
        for file in folder.rglob("*")
        if file.is_file() and file.stat().st_size > 100 and file.name[-1] in "RM"
    ]


@pytest.mark.parametrize("damage", ["cut off", "changed"])
def test_a_damaged_entry_is_compiled_anew(real_host: Host, tmp_path: Path, damage: str) -> None:
    cache_folder = tmp_path / "kept"
    first, _ = build(tmp_path / "one", real_host, cache_folder)
    damaged_files = entries(cache_folder / "ccache")
    assert damaged_files
    for file in damaged_files:
        content = bytearray(file.read_bytes())
        file.chmod(0o644)
        if damage == "cut off":
            del content[len(content) // 2 :]
        else:
            content[-40] ^= 0xFF
        file.write_bytes(content)
    second, hits = build(tmp_path / "two", real_host, cache_folder)
    assert first == second
    assert (hits.hits, hits.misses) == (0, 1)
    assert build(tmp_path / "three", real_host, cache_folder)[1].hits == 1  # and it is mended


def test_a_cache_on_a_full_disk_costs_hits_and_no_build(real_host: Host, tmp_path: Path) -> None:
    source = checkout(tmp_path)
    folder = tmp_path / "small"
    folder.mkdir()
    cache = set_up(tmp_path, real_host, folder)
    variables = {**cache.variables, "CCACHE_TEMPDIR": f"{folder}/ccache/tmp"}
    command = (
        f"mount -t tmpfs -o size=64k tmpfs {folder} && mkdir -p {folder}/ccache/tmp && "
        f"(cat /dev/zero > {folder}/zeros || true) 2> /dev/null && "
        f"{cache.program} g++ -c {source}/a.cpp -I{source}/include -o {source}/a.o"
    )
    namespace = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--map-root-user"])]
    if subprocess.run(
        [*namespace, "mount", "-t", "tmpfs", "tmpfs", folder], check=False, capture_output=True
    ).returncode:
        pytest.skip("no file system can be mounted here")
    completed = subprocess.run(
        [*namespace, "sh", "-c", command],
        env=CLEAN | variables,
        capture_output=True,
        text=True,
        check=False,
    )
    assert completed.returncode == 0, completed.stderr
    assert (source / "a.o").stat().st_size > 0


def build_on_three_machines(folder: Path, host: Host, address: str) -> list[CacheHits]:
    """Build three times, as machines that have only a shared cache in common."""
    return [
        build(folder / name, host, folder / name / "kept", TORCHMILL_CACHE=address)[1]
        for name in ("one", "two", "three")
    ]


def test_machines_share_a_cache_over_redis(real_host: Host, tmp_path: Path) -> None:
    with cache_servers.redis("--requirepass", "s3cret") as address:
        first, second, third = build_on_three_machines(
            tmp_path, real_host, f"redis://:s3cret@{address}/3"
        )
        assert (first.hits, first.misses, first.remote) == (0, 1, 0)
        assert second == third == CacheHits(second.tool, 1, 0, 1, 0, f"redis://{address}/3")
        cache = set_up(
            tmp_path / "four",
            real_host,
            tmp_path / "kept",
            TORCHMILL_CACHE=f"redis://s3cret@{address}",
        )
    # The server has ended now.
    object_code = compile_in(
        checkout(tmp_path / "four"), cache.variables, real_host.programs.paths["ccache"]
    )
    hits = compiler_cache.read_cache_hits(cache, cache.variables)
    assert object_code
    assert hits is not None
    assert (hits.misses, hits.failures > 0) == (1, True)


def test_machines_share_a_cache_over_http_and_may_be_kept_from_writing(
    real_host: Host, tmp_path: Path
) -> None:
    with cache_servers.apache() as address:
        url = f"http://{address}"
        readers = build_on_three_machines(tmp_path / "readers", real_host, f"{url}#read-only")
        assert [(hits.hits, hits.misses) for hits in readers] == [(0, 1)] * 3
        first, second, third = build_on_three_machines(tmp_path, real_host, url)
        assert (first.hits, first.misses) == (0, 1)
        assert second == third == CacheHits(second.tool, 1, 0, 1, 0, url)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", None),
        ("none", None),
        ("gha", RemoteCache("gha")),
        ("redis://cache.example", RemoteCache("redis", "cache.example")),
        (
            "redis://me:p%2Fw@[::1]:6380/2#read-only",
            RemoteCache("redis", "::1", 6380, "/2", "me", "p/w", read_only=True),
        ),
        (
            "http://cache.example/a/?layout=bazel",
            RemoteCache("http", "cache.example", None, "/a", options={"layout": "bazel"}),
        ),
        ("file:///mnt/cache", RemoteCache("file", path="/mnt/cache")),
        ("file:///mnt/my%20cache", RemoteCache("file", path="/mnt/my cache")),
        (
            "s3://Wheels/torch?region=auto",
            RemoteCache("s3", "Wheels", None, "/torch", options={"region": "auto"}),
        ),
    ],
)
def test_each_kind_of_shared_cache_is_parsed(text: str, expected: RemoteCache | None) -> None:
    assert remote_cache.parse_remote(text) == expected


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("redis", "'' is not a supported kind of cache"),
        ("memcached://cache", "'memcached' is not a supported kind of cache"),
        ("redis://", "it has no host"),
        ("s3:///prefix", "it has no bucket"),
        ("file://mnt/cache", "a folder begins with a slash: file:///FOLDER"),
        ("file:///", "a folder begins with a slash: file:///FOLDER"),
        ("redis://cache/first", "the database of Redis is a number, not 'first'"),
        ("redis://cache:port", "Port could not be cast"),
        ("redis://cache:99999", "Port out of range"),
        ("http://[cache", "Invalid IPv6 URL"),
        ("http://cache/?ttl=1", "'ttl' is not an option of this cache"),
        ("http://cache/a b", "it contains a space, a control character such as a tab, a bar"),
        ("http://cache/a\tb", "it contains a space, a control character such as a tab, a bar"),
        ("redis://cache\t", "it contains a space, a control character such as a tab, a bar"),
        ("http://cache|read-only", "it contains a space, a control character such as a tab, a bar"),
        ("gha#rw", "'#rw' is not '#read-only'"),
        (
            "s3://me:key@bucket",
            "credentials for a bucket belong in AWS_ACCESS_KEY_ID and ",
        ),
        ("s3://bucket:9000/a", "a bucket has no port: its server belongs in ?endpoint=HOST:PORT"),
        ("s3://bucket?endpoint=ftp://x", "the endpoint's scheme 'ftp' is not http or https"),
    ],
)
def test_settings_that_name_no_cache_are_refused(text: str, reason: str) -> None:
    with pytest.raises(ConfigError) as caught:
        remote_cache.parse_remote(text)
    message = str(caught.value)
    assert message.startswith("TORCHMILL_CACHE is '")
    assert f", but {reason}" in message
    assert message.endswith("s3://BUCKET/PREFIX, gha or none")


def test_a_password_is_never_shown() -> None:
    cache = remote_cache.parse_remote("http://me:secret@cache.example:8080/a")
    assert str(cache) == "http://cache.example:8080/a"
    assert "secret" not in repr(cache)
    wrong_settings = (
        "redis://me:secret@cache/first",
        "mongo://me:secret@cache",
        "http://me:secret@ca che",
        "redis://me:12/secret@cache",  # the slash should be "%2F"
        "redis://:12#secret@cache",
        "http://me:12?secret@cache",
        "http://me:secret/34@cache",
        "http://me:'secret/34@cache",  # Python quotes this text by double quotes
        "http://me:secret\N{ACCOUNT OF}@cache",
        "redis://me:secret://@cache/first",
        "secret@cache",
        "SECRET:@cache",  # a scheme for the parser, which quotes it in lower case
    )
    for setting in wrong_settings:
        with pytest.raises(ConfigError) as caught:
            remote_cache.parse_remote(setting)
        assert "secret" not in str(caught.value)


def parse_remote(text: str) -> RemoteCache:
    cache = remote_cache.parse_remote(text)
    assert cache is not None
    return cache


@pytest.mark.parametrize(
    ("text", "endpoint"),
    [
        ("redis://cache", ("cache", 6379)),
        ("https://cache/a", ("cache", 443)),
        ("s3://wheels", None),
        ("s3://wheels?endpoint=minio:9000", ("minio", 9000)),
        ("s3://wheels?endpoint=https://minio", ("minio", 443)),
        ("file:///mnt", None),
    ],
)
def test_the_endpoint_of_each_kind(text: str, endpoint: tuple[str, int] | None) -> None:
    assert parse_remote(text).endpoint == endpoint


def test_a_closed_port_and_an_unknown_host_are_unreachable() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"redis://127.0.0.1:{listener.getsockname()[1]}"
        assert remote_cache.unreachable_reason(parse_remote(address), {}) is None
    assert remote_cache.unreachable_reason(parse_remote(address), {}) == "Connection refused"
    assert remote_cache.unreachable_reason(parse_remote("http://no.such.host.invalid"), {})


def test_the_cache_of_github_needs_a_workflow() -> None:
    environ = {"ACTIONS_RESULTS_URL": "https://x", "ACTIONS_RUNTIME_TOKEN": "t"}
    assert remote_cache.unreachable_reason(parse_remote("gha"), environ) is None
    del environ["ACTIONS_RUNTIME_TOKEN"]
    reason = remote_cache.unreachable_reason(parse_remote("gha"), environ)
    assert reason == "ACTIONS_RUNTIME_TOKEN is not set: only a step of a workflow can export it"


@pytest.mark.parametrize("host", ["cache..example", "x" * 70])
def test_an_invalid_host_name_is_unreachable(host: str) -> None:
    assert (
        remote_cache.unreachable_reason(parse_remote(f"redis://{host}"), {})
        == f"{host} is not a valid host name"
    )
    bucket = parse_remote(f"s3://bucket?endpoint={host}")
    assert remote_cache.unreachable_reason(bucket, {}) == f"{host} is not a valid host name"


def test_a_cache_behind_a_proxy_is_not_probed_directly() -> None:
    environ = {"HTTPS_PROXY": "http://proxy.example:3128"}
    assert (
        remote_cache.unreachable_reason(parse_remote("https://no.such.host.invalid"), environ)
        is None
    )
    assert remote_cache.unreachable_reason(parse_remote("redis://no.such.host.invalid"), environ)
    assert remote_cache.unreachable_reason(
        parse_remote("https://no.such.host.invalid"), {"HTTPS_PROXY": ""}
    )


def identity(compiler: str) -> str:
    return digest_compiler(compiler, StatCache(Path("no memory")).digest)


def test_compilers_are_found_as_a_build_finds_them(tmp_path: Path) -> None:
    cc = script(tmp_path / "bin/cc")
    cxx = script(tmp_path / "own/g++")
    path = f"{tmp_path}/bin"
    assert chosen_compilers({"PATH": path}) == {cc}
    assert chosen_compilers({"PATH": path, "CC": "", "CXX": f"nowhere {cxx} -m64"}) == {
        cc,
        cxx,
    }
    assert chosen_compilers({"PATH": path, "CXX": "'"}) == {cc}


def test_the_identity_of_a_real_compiler_includes_cc1plus() -> None:
    gxx = shutil.which("g++")
    if gxx is None:
        pytest.skip("there is no g++")
    completed = subprocess.run(
        [gxx, "-print-prog-name=cc1plus"], capture_output=True, text=True, check=True
    )
    assert Path(completed.stdout.strip()).resolve() in _programs_behind(gxx)


def test_identity_depends_on_cc1plus_and_not_on_the_path(tmp_path: Path) -> None:
    identities = []
    for place, content in (("a", "1"), ("b", "1"), ("c", "2")):
        script(tmp_path / place / "cc1plus", f"# {content}")
        answer = 'case "$1" in *cc1plus) echo "$(dirname "$0")/cc1plus";; esac'
        identities.append(identity(script(tmp_path / place / "c++", answer)))
    assert identities[0] == identities[1] != identities[2]


def test_the_identity_of_other_programs_is_their_content(tmp_path: Path) -> None:
    file = tmp_path / "c++"
    file.write_text("no program")
    file.chmod(0o755)
    before = identity(str(file))
    file.write_text("nor this")
    assert identity(str(file)) != before
    assert identity(os.fspath(tmp_path / "gone")) not in {"", before}


def test_the_identity_of_clang_includes_its_libraries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program clang is small, and its libraries compile."""
    library = tmp_path / "libclang-cpp.so.14"
    script(
        tmp_path / "ldd",
        f'echo "  libc.so.6 => /lib/libc.so.6 (0x0)"; echo "  {library.name} => {library} (0x0)"',
    )
    clang = script(tmp_path / "clang", f'case "$1" in *=clang) echo {tmp_path}/clang;; esac')
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    library.write_text("1")
    before = identity(clang)
    library.write_text("2")
    assert identity(clang) != before


@pytest.mark.parametrize("address", ["s3://bucket/x", "https://cache.invalid/x#read-only"])
def test_parts_are_kept_where_a_shared_cache_would_need_sccache(
    tmp_path: Path, address: str
) -> None:
    """Parts are not written by sccache, so nobody would have the objects of a share."""
    notes: list[str] = []
    # With a proxy, the server is not asked to accept a connection.
    environ = {"TORCHMILL_CACHE": address, "http_proxy": "http://proxy.invalid"}
    site_without_parts = site(
        tmp_path, host_with_tools(tmp_path, "ccache", "sccache"), notes, **environ
    )
    parts = tmp_path / "parts"
    cache = compiler_cache.set_up_cache(
        replace(site_without_parts, parts=(RemoteCache("file", path=str(parts)),))
    )
    assert (cache.tool, cache.shared) == ("ccache", None)
    assert any(str(parts) in value for value in cache.variables.values())
    assert "without the shared cache" in notes[0]
