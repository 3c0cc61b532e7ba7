"""Debian's packages, unpacked into a folder of ours."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tarfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from torchmill.errors import SourceError
from torchmill.pack import members
from torchmill.toolkit.debian_layout import Place, relinked

PROGRAM = "dpkg-deb"
_CHUNK = 1 << 20  # bytes
_AT_ONCE = 4  # at most: more than that wait for the disk


def unpack(packages: Sequence[Path], folder: Path, place: Place, on_done: Callable[[Path], None]) -> None:
    """Put the files of packages where `place` wants them; `on_done` hears of each package that is through.

    Raises SourceError for a package that cannot be read, OSError for a disk without room. Whatever stops one
    stops all.
    """
    running: set[subprocess.Popen[bytes]] = set()
    with ThreadPoolExecutor(min(_AT_ONCE, os.cpu_count() or 1)) as threads:
        works = {threads.submit(_unpack, one, folder, place, running): one for one in packages}
        try:
            for work in as_completed(works):
                work.result()
                on_done(works[work])
        except BaseException:
            threads.shutdown(wait=False, cancel_futures=True)
            for process in tuple(running):
                _end(process)
            raise


def _unpack(package: Path, folder: Path, place: Place, running: set[subprocess.Popen[bytes]]) -> None:
    argv = [PROGRAM, "--fsys-tarfile", str(package)]
    said = ""
    # a group of its own: the program leaves its work to children, which outlive it
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, process_group=0) as process:
        running.add(process)
        try:
            with tarfile.open(fileobj=process.stdout, mode="r|", bufsize=_CHUNK) as archive:
                for member in archive:
                    _put(archive, member, folder, place)
        except tarfile.TarError as error:
            said = f"{error}\n"
        except BaseException:
            _end(process)
            raise
        finally:
            running.discard(process)
        said += process.communicate()[1].decode(errors="replace")
    if process.returncode or said:
        lines = said.splitlines() or [f"exit code {process.returncode}"]
        raise SourceError(f"{package} cannot be unpacked ({lines[-1]}): delete it, and run the command again")


def _end(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _put(archive: tarfile.TarFile, member: tarfile.TarInfo, folder: Path, place: Place) -> None:
    path = member.name.removeprefix("./")
    new = None if members.leaves(path) or member.isdir() else place(path)
    if new is None:
        return
    target = folder / new
    target.parent.mkdir(parents=True, exist_ok=True)
    if member.issym():
        if (to := relinked(path, member.linkname, place)) is not None:
            target.symlink_to(to)
    elif member.islnk():
        if (there := place(member.linkname.removeprefix("./"))) is not None:
            os.link(folder / there, target)
    elif (content := archive.extractfile(member)) is not None:
        with target.open("wb") as file:
            shutil.copyfileobj(content, file, _CHUNK)
        target.chmod(0o755 if member.mode & 0o111 else 0o644)


def mend_links(folder: Path, libraries: Iterable[Path]) -> None:
    """Lead links that lead nowhere to the machine's libraries of those names, or remove them."""
    places = list(libraries)
    for link in list(_dangling(folder)):
        name = link.readlink().name
        link.unlink()
        there = next((place / name for place in places if (place / name).exists()), None)
        if there is not None:
            link.symlink_to(there)


def _dangling(folder: Path) -> Iterator[Path]:
    for place, _, names in os.walk(folder):
        yield from (link for name in names if (link := Path(place, name)).is_symlink() and not link.exists())
