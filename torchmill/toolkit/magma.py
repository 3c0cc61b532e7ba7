"""MAGMA in a folder of its own: what of a package belongs there, and whether it is what was asked for."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from torchmill.cuda import magma
from torchmill.errors import SourceError
from torchmill.host import libraries
from torchmill.host.kept import Kept
from torchmill.toolkit.wanted import MAGMA, Wanted

# Which of some capabilities, "7.0;8.6", some code does not serve: `capabilities.serving` with the facts.
Unserved = Callable[[str, str], Sequence[str]]

_PLACES = (
    (re.compile(r"(?:usr/)?include/([^/]+\.h)"), r"include/\1"),
    (re.compile(r"(?:usr/)?lib(?:64)?/(?:[^/]+-linux-gnu/)?(libmagma\.a)"), r"lib/\1"),
    (re.compile(r"usr/share/doc/libmagma-dev/(copyright)"), r"licenses/magma/\1"),
)


def place(path: str) -> str | None:
    """Return where a file of a package goes; None: it is left out, as shared libraries are.

    The official builds link MAGMA statically, and so do ours: nothing of it is needed where a wheel runs.
    """
    found = ((pattern.fullmatch(path), new) for pattern, new in _PLACES)
    return next((match.expand(new) for match, new in found if match), None)


def serving(there: Mapping[str, Kept], wanted: Wanted, unserved: Unserved) -> Kept | None:
    """Return what is kept of a version for a toolkit and serves the capabilities asked for."""
    names = [
        one.name
        for one in magma.kept(there, wanted.cuda or "")
        if one.version == wanted.version and not unserved(one.code, wanted.capabilities)
    ]
    return there[names[0]] if names else None


def named(wanted: Wanted, folder: Path, unserved: Unserved, whose: str) -> str:
    """Return under which name what lies in a folder is kept; `whose` says where it is from: "debian has".

    Raises SourceError where it is of another version, or has no code for the capabilities asked for.
    """
    said = libraries.version(MAGMA, folder / "include")
    if said != wanted.version:
        raise SourceError(f"what {whose} as {wanted} calls itself {said or 'nothing'}: name that version")
    code = code_in(folder)
    if not code:
        raise SourceError(f"what {whose} as {wanted} has no code for GPUs that all of it shares: {_OTHER}")
    if missed := unserved(code, wanted.capabilities):
        raise SourceError(
            f"what {whose} as {wanted} has code for {code} and none for {', '.join(missed)}: {_OTHER}"
        )
    return magma.named(wanted.name, code)


_OTHER = "take it from elsewhere (`--from`)"


def code_in(folder: Path) -> str:
    """Return what the library in a folder has code for: "7.0;8.6+PTX". Raises BuildError for a broken one."""
    from torchmill.pack import static  # noqa: PLC0415 (with what follows they load much)
    from torchmill.verify import devicecode  # noqa: PLC0415

    library = next(one for one in (folder / "lib/libmagma.a", folder / "lib/libmagma.so") if one.exists())
    read = devicecode.of_static if static.is_static(library) else devicecode.read
    return devicecode.common(read(library))
