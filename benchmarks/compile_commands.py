"""The compile commands of a configured build tree, made to write elsewhere."""

import json
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_CACHES = {"ccache", "sccache"}
_DEPENDENCIES = {"-MT": 1, "-MF": 1, "-MQ": 1, "-MD": 0, "-MMD": 0}  # and how many words follow


@dataclass(frozen=True, slots=True)
class Command:
    """How one object is compiled, and where."""

    folder: Path
    argv: tuple[str, ...]

    def with_output(self, path: str, flags: Sequence[str] = ()) -> list[str]:
        """Return the command without a compiler cache or dependency file, with its object at `path`."""
        words = iter(
            word for index, word in enumerate(self.argv) if index or Path(word).name not in _CACHES
        )
        kept: list[str] = []
        for word in words:
            if word in _DEPENDENCIES:
                for _ in range(_DEPENDENCIES[word]):
                    next(words)
            elif word == "-o":
                next(words)
            else:
                kept.append(word)
        return [*kept, *flags, "-o", path]


def of(tree: Path) -> Mapping[str, Command]:
    """Return the compile commands of a build tree of ninja, by source, a path below the folder of `tree`."""
    listed = subprocess.run(
        ["ninja", "-C", tree, "-t", "compdb"], check=True, capture_output=True
    ).stdout
    package = tree.resolve().parent
    found: dict[str, Command] = {}
    for one in json.loads(
        listed[listed.index(b"[") :]
    ):  # ninja may say first that it enters the folder
        source = package.joinpath(one["directory"], one["file"])
        if " -c " in one["command"] and source.is_relative_to(package):
            command = Command(Path(one["directory"]), tuple(shlex.split(one["command"])))
            found.setdefault(str(source.relative_to(package)), command)
    return found
