"""Debian's binary packages, listed and downloaded by an apt of our own; nothing is installed."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from torchmill.process import CommandError, stream
from torchmill.source.apt import Apt, stanzas, upstream_version

_STATUS = re.compile(r"dlstatus:\d+:(?P<percent>[\d.]+):")
_GLIBC = re.compile(r"\blibc6 \(>= (\d+\.\d+)")
_NAME = re.compile(r"[^\s:(\[<]+")


@dataclass(frozen=True, slots=True)
class Binary:
    """A binary package that the archive lists."""

    name: str
    version: str  # Debian's, "11.8.89~11.8.0-5~deb12u1"
    made_from: str  # the name of its source package
    depends: tuple[tuple[str, ...], ...]  # names; of each group one is needed
    glibc: str | None  # the oldest that it is known to run with
    file: str
    size: int  # bytes
    sha256: str

    @property
    def upstream(self) -> str:
        """Return the version that its authors gave it: "11.8.89~11.8.0"."""
        return upstream_version(self.version)


def settings(apt: Apt, architecture: str) -> dict[str, object]:
    """Return what makes an apt list the packages of one machine as if nothing were installed on it."""
    nothing = apt.folder / "nothing"
    nothing.mkdir(parents=True, exist_ok=True)
    status = nothing / "status"
    status.touch()
    return {
        "APT::Architecture": architecture,
        "APT::Architectures": architecture,
        "Dir::State::status": status,
        "Dir::Etc::preferences": "/dev/null",  # the machine's pins are about what it installs
        "Dir::Etc::preferencesparts": nothing,
        "APT::Update::Error-Mode": "any",  # without it, lists that did not come are only warned of
    }


def listed(apt: Apt, names: Iterable[str]) -> dict[str, Binary]:
    """Return the newest version of those of the packages that the archives have, by their names."""
    try:
        said = apt.run("apt-cache", "show", "--no-all-versions", *names)
    except CommandError:  # none of them, or no lists yet
        return {}
    return {package.name: package for package in parse_show(said)}


def closure(roots: Sequence[str], ask: Callable[[Iterable[str]], Mapping[str, Binary]]) -> tuple[Binary, ...]:
    """Return the roots and what they need, as far as that is made from the same sources as the roots.

    What is missing among the roots is left out. `ask` returns those packages that there are.
    """
    known = dict(ask(roots))
    followed = {package.made_from for package in known.values()}
    taken = {name: known[name] for name in roots if name in known}
    new = list(taken.values())
    while new:
        groups = [group for package in new for group in package.depends]
        unasked = dict.fromkeys(name for group in groups for name in group if name not in known)
        known |= ask(unasked) if unasked else {}
        new = []
        for group in groups:
            ours = [known[name] for name in group if name in known and known[name].made_from in followed]
            if ours and not taken.keys() & {package.name for package in ours}:
                taken[ours[0].name] = ours[0]
                new.append(ours[0])
    return tuple(taken.values())


def download(apt: Apt, packages: Sequence[Binary], folder: Path, on_share: Callable[[float], None]) -> None:
    """Bring packages into a folder, going on where an earlier try stopped; `on_share` hears 0.0 to 1.0.

    apt checks them against the signed lists. Raises CommandError.
    """
    wanted = [f"{package.name}={package.version}" for package in packages]
    argv = apt.command("apt-get", "-q", "-o", "APT::Status-Fd=1", "download", *wanted)

    def hear(line: str) -> None:
        if match := _STATUS.match(line):
            on_share(float(match["percent"]) / 100)

    stream(argv, cwd=folder, env=apt.environment(), log=io.StringIO(), on_line=hear)


def parse_show(text: str) -> list[Binary]:
    """Read what `apt-cache show` prints."""
    return [
        Binary(
            name=fields["package"],
            version=fields["version"],
            made_from=(fields.get("source") or fields["package"]).split()[0],
            depends=tuple(_groups(fields.get("depends", ""))),
            glibc=match[1] if (match := _GLIBC.search(fields.get("depends", ""))) else None,
            file=_file(fields),
            size=int(fields["size"]),
            sha256=fields["sha256"],
        )
        for fields in stanzas(text)
        if {"package", "version", "size", "sha256"} <= fields.keys()
    ]


def _groups(depends: str) -> Iterable[tuple[str, ...]]:
    for clause in depends.split(","):
        found = [_NAME.match(one.strip()) for one in clause.split("|")]
        if names := tuple(match[0] for match in found if match):
            yield names


def _file(fields: Mapping[str, str]) -> str:
    """Return the name that apt gives the file, which escapes the colon of an epoch."""
    version = fields["version"].replace(":", "%3a")
    return f"{fields['package']}_{version}_{fields.get('architecture', 'all')}.deb"
