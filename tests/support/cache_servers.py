"""Real servers for shared caches: Redis, and Apache as a folder over HTTP; installed or from Debian."""

import contextlib
import fcntl
import getpass
import os
import re
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from guard_support.guards import until

NOBODY = 65534
PACKAGES = {"redis-server": ("redis-tools", "redis-server"), "apache2": ("apache2-bin",)}
# Of what these need: what a machine lacks that has none of them.
_LIBRARY = r"libjemalloc|liblzf|liblua|lua-|libhiredis|libapr(?:util)?1(?:t64)?$"
LIBRARIES = re.compile(rf"^ +\|?Depends: ((?:{_LIBRARY})\S*)", re.MULTILINE)
ANSWER = {"redis-server": b"PING\r\n", "apache2": b"OPTIONS / HTTP/1.0\r\n\r\n"}
APACHE = """\
ServerName localhost
Listen 127.0.0.1:{port}
PidFile {folder}/pid
DefaultRuntimeDir {folder}
ErrorLog {folder}/errors
LoadModule mpm_event_module {modules}/mod_mpm_event.so
LoadModule authz_core_module {modules}/mod_authz_core.so
LoadModule dav_module {modules}/mod_dav.so
LoadModule dav_fs_module {modules}/mod_dav_fs.so
DavLockDB {folder}/lock
DocumentRoot {folder}/files
<Directory {folder}/files>
  Dav On
  Require all granted
</Directory>
"""


@contextlib.contextmanager
def redis(*options: str) -> Iterator[str]:
    """Run a Redis for as long as the context lasts; yield its address, "127.0.0.1:16379"."""
    program, environ = found("redis-server")
    port = free_port()
    argv = [program, "--port", str(port), "--bind", "127.0.0.1", "--save", "", *options]
    with (
        tempfile.TemporaryDirectory() as folder,
        _running("redis-server", argv, environ, Path(folder), port),
    ):
        yield f"127.0.0.1:{port}"


@contextlib.contextmanager
def apache() -> Iterator[str]:
    """Run an Apache that keeps what it is given for as long as the context lasts; yield its address."""
    program, environ = found("apache2")
    modules = Path(program).parents[1] / "lib/apache2/modules"
    port = free_port()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "files").mkdir()
        text = APACHE.format(port=port, folder=folder, modules=modules)
        if os.geteuid() == 0:  # it does not serve as root
            text += f"User #{NOBODY}\nGroup #{NOBODY}\n"
            for one in (folder, folder / "files"):
                os.chown(one, NOBODY, NOBODY)
        (folder / "conf").write_text(text)
        argv = [program, "-D", "FOREGROUND", "-f", str(folder / "conf")]
        with _running("apache2", argv, environ, folder, port):
            yield f"127.0.0.1:{port}"


@contextlib.contextmanager
def _running(
    name: str, argv: list[str], environ: Mapping[str, str], folder: Path, port: int
) -> Iterator[None]:
    with (folder / "said").open("wb") as said:
        server = subprocess.Popen(argv, cwd=folder, env=environ, stdout=said, stderr=said)
    try:
        until(lambda: _answers(name, port) or server.poll() is not None, name)
        assert server.poll() is None, (folder / "said").read_text()
        yield
    finally:
        server.terminate()
        server.wait(60)


def _answers(name: str, port: int) -> bool:
    with (
        contextlib.suppress(OSError),
        socket.create_connection(("127.0.0.1", port), 5) as connection,
    ):
        connection.sendall(ANSWER[name])
        return bool(connection.recv(1))
    return False


def free_port() -> int:
    """Return a port on which nobody listens."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def found(name: str) -> tuple[str, dict[str, str]]:
    """Return a server's program and its environment; skip the test where it is nowhere to be had."""
    path = os.pathsep.join([os.environ["PATH"], "/usr/sbin"])
    if (program := shutil.which(name, path=path)) is not None:
        return program, dict(os.environ)
    root = _unpacked(name)
    libraries = {str(file.parent) for file in root.rglob("lib*.so*") if "modules" not in file.parts}
    environ = {**os.environ, "LD_LIBRARY_PATH": os.pathsep.join(sorted(libraries))}
    program = next(str(file) for file in root.rglob(name) if file.parent.name in {"bin", "sbin"})
    return program, environ


def _unpacked(name: str) -> Path:
    """Return the folder in which Debian's packages of a server are unpacked, once for all runs of tests."""
    if not all(map(shutil.which, ("apt-get", "apt-cache", "dpkg-deb"))):
        pytest.skip(f"{name} is not installed, and this machine has no packages of Debian's kind")
    kept = Path(tempfile.gettempdir()) / f"torchmill-tests-{getpass.getuser()}-servers"
    kept.mkdir(mode=0o755, exist_ok=True)  # Apache, as nobody, loads more of it
    assert kept.stat().st_uid == os.getuid(), f"{kept} belongs to somebody else: remove it"
    with (kept / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        folder = kept / name
        if not folder.is_dir():
            _unpack(PACKAGES[name], folder)
    return folder


def _unpack(packages: tuple[str, ...], folder: Path) -> None:
    with tempfile.TemporaryDirectory(dir=folder.parent) as fresh:
        names = [*packages, *_libraries(packages)]
        done = subprocess.run(
            ["apt-get", "download", *names], cwd=fresh, capture_output=True, text=True, check=False
        )
        if done.returncode:
            pytest.skip(
                f"{folder.name} is not installed, and apt-get does not get it: {done.stderr.strip()}"
            )
        for package in Path(fresh).glob("*.deb"):
            subprocess.run(["dpkg-deb", "-x", package, f"{fresh}/root"], check=True)
        root = Path(fresh) / "root"
        root.chmod(0o755)
        root.rename(folder)


def _libraries(packages: tuple[str, ...]) -> list[str]:
    """Return the packages of libraries that come with these."""
    argv = ["apt-cache", "depends", "--no-recommends", "--no-suggests", *packages]
    said = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    return sorted(set(LIBRARIES.findall(said)))
