"""Find and download Debian's packages, by an apt that changes nothing of the system.

An archive is a server with packages. apt downloads its lists, which describe the packages. Settings
let apt keep the lists, its downloads and the addresses of archives in a folder of the user's cache.
"Upstream" are the authors of a program, whose version is a part of Debian's version.
"""

import contextlib
import io
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from torchmill.core import process, retries
from torchmill.core.digests import hash_file
from torchmill.core.errors import NetworkError, SourceError, TorchmillError
from torchmill.core.locks import hold_folder
from torchmill.core.process import CommandError
from torchmill.core.retries import PassingFailure
from torchmill.core.silence import SilentError
from torchmill.core.system_errors import disk_full_error
from torchmill.fetch.source import source_dir
from torchmill.fetch.source.apt_archives import AptArchive, parse_stanzas
from torchmill.fetch.source.git_command import complaint_gist

ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}  # arch -> Debian's name of it
_LISTS_FRESH_SECONDS = 86400.0  # how long lists are used before they are downloaded anew
_SETTINGS = Path(__file__).with_name("apt.conf")  # the settings that do not depend on the folder
# What Debian adds to a version when it repacks a source: "1.13.1+dfsg", "9.1.0+ds1", "1.0~repack2".
_REPACKED = re.compile(r"[+~.](?:really)?(?:dfsg|ds|repack)[\d.]*$")
_ORIGINAL_TARBALL = re.compile(r"\.orig\.tar\.\w+$")
# A line that apt writes to APT::Status-Fd (README.progress-reporting of apt).
_STATUS = re.compile(r"dlstatus:\d+:(?P<percent>[\d.]+):")
_GLIBC = re.compile(r"\blibc6 \(>= (\d+\.\d+)")
_PACKAGE_NAME = re.compile(r"[^\s:(\[<]+")
_NOT_FOUND = re.compile(r"\b404 +Not Found")  # not only "404", which may be a size: "[404 kB]"
_UNREACHABLE = re.compile(
    r"(?i)could not resolve|temporary failure|unable to connect|could not connect|timed out"
)
# apt prints a status alone on a line ("  503  Service Unavailable [IP: …]"), or behind an address.
# If the answer about a list broke off, apt asks for its other forms, and says only that the last of
# them is not there.
_PASSING = re.compile(
    r"(?im)temporary failure|unable to connect|could not connect|timed out|connection (?:reset|failed)"
    r"|error reading from server|remote end closed|undetermined error|\s(?:408|425|429|50[0234])  [A-Z]"
    r"|/(?:Packages|Sources)[\w.]*  404  "
)
_MUCH = 1 << 30  # bytes; ends any silence
_Answer = TypeVar("_Answer")


@dataclass(frozen=True, slots=True)
class _ListedPackage:
    """A package in the lists of an archive."""

    name: str
    version: str  # Debian's: "1.13.1+dfsg-4", "11.8.89~11.8.0-5~deb12u1"

    @property
    def upstream(self) -> str:
        """Return the version of the authors, "1.13.1".

        Debian's version without its epoch, its revision and the mark of a repacked source.
        """
        _, _, without_epoch = self.version.rpartition(":")
        without_revision = without_epoch.rpartition("-")[0] or without_epoch
        return _REPACKED.sub("", without_revision)


@dataclass(frozen=True, slots=True)
class SourcePackage(_ListedPackage):
    """A source package that an archive lists."""

    tarball: str  # file name of the authors' source, without Debian's patches
    sha256: str  # of the tarball


@dataclass(frozen=True, slots=True)
class BinaryPackage(_ListedPackage):
    """A binary package that an archive lists."""

    source_name: str  # the name of the source package that it was built from
    # Groups of names of packages: this package needs one package of each group.
    depends: tuple[tuple[str, ...], ...]
    glibc: str | None  # the oldest version of glibc that it declares to run with
    file: str  # the name that apt gives the downloaded file
    size: int  # bytes
    sha256: str


class Apt:
    """An apt that keeps its lists, its cache and the addresses of archives below `folder`.

    It downloads the tarballs of source packages to `downloads`. To be configured before any other
    use: `configure` makes the folders and the settings that all programs of apt are given.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.downloads = folder / "downloads"

    def configure(self, archives: Iterable[AptArchive], architecture: str = "") -> None:
        """Write the settings with which apt reads some archives.

        With an `architecture` ("arm64"), apt lists packages of that architecture, as if nothing
        were installed. Without, it lists those of this machine.
        """
        for name in ("lists/partial", "cache/archives/partial", "sources", "downloads", "empty"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        stanzas = "\n".join(archive.stanza() for archive in archives)
        (self.folder / "sources" / "machine.sources").write_text(stanzas, encoding="utf-8")
        empty = self.folder / "empty"
        (empty / "status").touch()  # the list of installed packages
        settings: dict[str, object] = {
            "Dir::State::lists": self.folder / "lists",
            "Dir::Cache": self.folder / "cache",
            "Dir::Etc::sourceparts": self.folder / "sources",
        }
        if architecture:
            settings |= {
                "APT::Architecture": architecture,
                "APT::Architectures": architecture,
                "Dir::State::status": empty / "status",
                # The preferences ("pins") of this machine are for its own packages.
                "Dir::Etc::preferences": "/dev/null",
                "Dir::Etc::preferencesparts": empty,
                # By default `apt-get update` succeeds, with a warning, if it cannot read a list.
                "APT::Update::Error-Mode": "any",
            }
        lines = "".join(f'{key} "{value}";\n' for key, value in settings.items())
        text = _SETTINGS.read_text("utf-8") + lines
        (self.folder / "apt.conf").write_text(text, encoding="utf-8")

    def query(
        self, search: Callable[[], _Answer], is_enough: Callable[[_Answer], bool]
    ) -> tuple[_Answer, CommandError | None]:
        """Return the answer of a search in the lists, and the error if they could not be renewed.

        Lists of the last 24 hours are searched first. If `is_enough` rejects the answer, or if the
        lists are older, they are downloaded anew and searched again. If that fails, the answer of
        the old lists is returned together with apt's error.
        """
        stamp = self.folder / "updated"
        age = None
        if stamp.exists():
            age = time.time() - stamp.stat().st_mtime
        # If the clock was wrong, the stamp may be from the future. It must not count as fresh for
        # so long.
        if age is not None and 0 <= age < _LISTS_FRESH_SECONDS:
            answer = search()
            if is_enough(answer):
                return answer, None
        failure = None
        try:
            self.fetch("update")
            stamp.touch()
        except CommandError as error:  # maybe only one of several archives is gone
            failure = error
        return search(), failure

    def find_source(self, name: str, upstream: str | None = None) -> SourcePackage | None:
        """Return the newest version of a source package in the lists.

        With `upstream`, only versions of exactly that version of the authors count. None if no such
        package is listed, or if apt cannot read the lists.
        """
        output = ""
        with contextlib.suppress(CommandError):  # apt fails for an unknown name, and without lists
            output = self.look_up("showsrc", "--only-source", name)
        newest = None
        for package in parse_showsrc(output):  # in the order of the lists, not of the versions
            is_wanted = upstream is None or upstream == package.upstream
            if is_wanted and (newest is None or _is_newer(package.version, newest.version)):
                newest = package
        return newest

    def download_source(self, package: SourcePackage) -> None:
        """Download the tarball of a source package, unless it is in `downloads` and intact.

        Raises CommandError if apt fails, SourceError if the tarball's sha256 is not the listed one.
        """
        target = self.downloads / package.tarball
        if not target.exists() or hash_file(target) != package.sha256:
            # --tar-only: without Debian's patches. --only-source: `name` is that of a source
            # package, and not of a binary package, which another source may make.
            options = ("--download-only", "--tar-only", "--only-source")
            self.fetch("source", *options, f"{package.name}={package.version}")
        actual = hash_file(target) if target.exists() else "missing"
        if actual != package.sha256:
            target.unlink(missing_ok=True)
            raise SourceError(
                f"{target}: its sha256 was {actual}, but Debian lists {package.sha256}: run the "
                "command again, which downloads it anew",
                code="wrong-digest",
            )

    def look_up(self, *arguments: str) -> str:
        """Return what apt-cache prints about the lists. Raises CommandError."""
        argv = self._command("apt-cache", *arguments)
        return process.capture(argv, cwd=self.downloads, env=self.environment())

    def fetch(
        self,
        *arguments: str,
        folder: Path | None = None,
        on_line: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Run apt-get, which downloads lists, or packages into a folder (by default `downloads`).

        It is run again if a connection broke, or if nothing arrives any more: apt 2.6 may wait for
        ever after a server refused a request. `on_line` gets the lines of its output. Raises
        CommandError.
        """
        argv = self._command("apt-get", "-q", "-o", "APT::Status-Fd=1", *arguments)
        last_line = ""

        def bytes_of(line: str) -> int:
            """Return a number of bytes that ends a silence, if a line is new.

            apt writes its status twice a second, also if nothing arrives.
            """
            nonlocal last_line
            is_new = line != last_line
            last_line = line
            return _MUCH if is_new else 0

        def run() -> None:
            process.stream(
                argv,
                cwd=folder or self.downloads,
                env=self.environment(),
                log=io.StringIO(),
                on_line=on_line,
                waits_for="Debian's archive",
                bytes_of=bytes_of,
            )

        try:
            retries.repeat(run, judge_apt, "apt")
        except SilentError as error:
            # In apt's words, so that callers need to know one kind of error only.
            raise CommandError(argv, 1, f"E: Connection timed out: {error}") from None

    def _command(self, program: str, *arguments: str) -> list[str]:
        """Return the command that runs one of apt's programs with these settings."""
        return [program, "-c", str(self.folder / "apt.conf"), *arguments]

    @staticmethod
    def environment() -> dict[str, str]:
        """Return the environment for apt, whose output is parsed and so must be in English."""
        environment = {**os.environ, "LC_ALL": "C"}
        environment.pop("LANGUAGE", None)  # gettext prefers it to LC_ALL
        return environment


def _is_newer(version: str, other: str) -> bool:
    """Tell whether a version of a package is newer than another one, by Debian's rules.

    dpkg, which every apt has, compares them: a release candidate, "2.0~rc1", comes before "2.0".
    """
    if version == other:
        return False
    try:
        process.ask(["dpkg", "--compare-versions", version, "gt", other])
    except CommandError:  # the exit code 1 of dpkg says "no"
        return False
    return True


def hold_apt(folder: Path) -> AbstractContextManager[None]:
    """Hold a folder with lists and downloads of apt, which several runs may want.

    Raises BusyError if another run holds it for over ten minutes.
    """
    message = f"{folder} is in use by another run: wait for it, or stop it"
    return hold_folder(folder, source_dir.WAIT_TIMEOUT_SECONDS, message=message, code="apt-busy")


def parse_showsrc(text: str) -> Iterator[SourcePackage]:
    """Yield the source packages that `apt-cache showsrc` prints, as far as they have a tarball.

    Packages that only Debian has ("native" ones) have no tarball of other authors.
    """
    for fields in parse_stanzas(text):
        # A line for each file: digest, size, name.
        for line in fields.get("checksums-sha256", "").splitlines():
            words = line.split()
            if len(words) > 2 and _ORIGINAL_TARBALL.search(words[2]):  # noqa: PLR2004
                yield SourcePackage(
                    name=fields["package"],
                    version=fields["version"],
                    tarball=words[2],
                    sha256=words[0],
                )


def parse_show(text: str) -> Iterator[BinaryPackage]:
    """Yield the binary packages that `apt-cache show` prints; virtual ones have no file."""
    for fields in parse_stanzas(text):
        if not {"package", "version", "size", "sha256"} <= fields.keys():
            continue
        name = fields["package"]
        version = fields["version"]
        depends = fields.get("depends", "")
        glibc = _GLIBC.search(depends)
        # In the name of a downloaded file, apt escapes the colon of an epoch.
        file_version = version.replace(":", "%3a")
        architecture = fields.get("architecture", "all")
        yield BinaryPackage(
            name=name,
            version=version,
            # The field is "nvidia-cuda-toolkit (11.8.0-5)" if the versions of source and binary
            # differ, and is missing if their names and versions are the same.
            source_name=(fields.get("source") or name).split()[0],
            depends=_parse_depends(depends),
            glibc=glibc[1] if glibc else None,
            file=f"{name}_{file_version}_{architecture}.deb",
            size=int(fields["size"]),
            sha256=fields["sha256"],
        )


def _parse_depends(depends: str) -> tuple[tuple[str, ...], ...]:
    """Return the groups of names in a Depends field, "libc6 (>= 2.14), libgcc-s1 | libgcc1:any"."""
    groups = []
    for clause in depends.split(","):
        matches = [_PACKAGE_NAME.match(alternative.strip()) for alternative in clause.split("|")]
        names = tuple(match[0] for match in matches if match)
        if names:
            groups.append(names)
    return tuple(groups)


def list_binaries(apt: Apt, names: Iterable[str]) -> dict[str, BinaryPackage]:
    """Return each package that the archives have, by name, in the version that apt would install.

    That is the newest one, unless a preference ("pin") of the machine or of an archive, such as
    that of backports, chooses an older one. Packages that the archives do not have are left out:
    all of them, if apt cannot read its lists.
    """
    output = ""
    with contextlib.suppress(CommandError):  # apt fails if it has none of them, and without lists
        output = apt.look_up("show", "--no-all-versions", *names)
    return {package.name: package for package in parse_show(output)}


def package_closure(
    roots: Sequence[str], look_up: Callable[[Iterable[str]], Mapping[str, BinaryPackage]]
) -> tuple[BinaryPackage, ...]:
    """Return the packages called `roots`, and all that they need of the same source packages.

    What those need is returned, too, and so on. For a toolkit these are, for example, its compiler
    and its libraries, but neither the driver nor the C library, which have other source packages.
    `look_up` returns packages by their names, without those that no archive lists. Such roots are
    left out.
    """
    listed = dict(look_up(roots))
    sources = {package.source_name for package in listed.values()}
    chosen = {name: listed[name] for name in roots if name in listed}
    new_packages = list(chosen.values())
    while new_packages:
        groups: list[tuple[str, ...]] = []
        for package in new_packages:
            groups.extend(package.depends)
        # A dict, unlike a set, keeps the order, so that every run gives apt the same command.
        unknown: dict[str, None] = {}
        for group in groups:
            unknown |= dict.fromkeys(name for name in group if name not in listed)
        if unknown:
            listed |= look_up(unknown)
        new_packages = []
        # From each group, the first package is chosen, as by apt, unless one was chosen before.
        for group in groups:
            alternatives = [listed[name] for name in group if name in listed]
            suitable = [package for package in alternatives if package.source_name in sources]
            is_satisfied = any(package.name in chosen for package in suitable)
            if suitable and not is_satisfied:
                first = suitable[0]
                chosen[first.name] = first
                new_packages.append(first)
    return tuple(chosen.values())


def download_binaries(
    apt: Apt,
    packages: Sequence[BinaryPackage],
    folder: Path,
    show_share: Callable[[float], None],
) -> None:
    """Download packages into a folder; downloads that were interrupted are resumed.

    `show_share` is called with the share that is done, 0.0 to 1.0. apt compares each file with its
    digest in the signed lists. Raises CommandError if apt fails.
    """
    specs = [f"{package.name}={package.version}" for package in packages]

    def parse_line(line: str) -> None:
        match = _STATUS.match(line)
        if match:
            show_share(float(match["percent"]) / 100)

    apt.fetch("download", *specs, folder=folder, on_line=parse_line)


def judge_apt(error: Exception) -> PassingFailure | None:
    """Return how a failure of apt may pass: a connection broke, or a server has no time."""
    if isinstance(error, CommandError) and _PASSING.search(error.output):
        return PassingFailure(apt_complaint(error.output))
    return retries.judge_error(error)


def explain_apt_error(output: str, folder: Path, title: str, alternatives: str) -> TorchmillError:
    """Return the error to show if apt failed to get `title`, by its output.

    If an archive no longer has a listed file, the lists are marked as old. `folder` is that of the
    `Apt`, `alternatives` is a clause that says what the user may do instead.
    """
    complaint = apt_complaint(output)
    if "no space left" in output.lower():
        return disk_full_error(folder)
    if _NOT_FOUND.search(output):
        # The archive has a newer version by now. The next run must download the lists, which would
        # otherwise be used until they are a day old.
        (folder / "updated").unlink(missing_ok=True)
        return SourceError(
            f"Debian's archive lists {title}, but its file is gone ({complaint}); the next run "
            f"reads its lists anew: {alternatives}",
            code="debian-file-gone",
        )
    if _UNREACHABLE.search(output):
        return NetworkError(
            f"cannot reach Debian's archive ({complaint}): {alternatives}", code="host-unreachable"
        )
    return SourceError(
        f"apt could not get {title} from Debian's archive ({complaint}): {alternatives}",
        code="apt-failed",
    )


def apt_complaint(output: str) -> str:
    """Return the first error in apt's output, without its label "E:".

    If there is none, it is the last line, or a clause that says that nothing was printed.
    """
    for line in output.splitlines():
        if line.startswith("E:"):
            return line.strip().removeprefix("E:").strip()
    return complaint_gist(output)
