"""The compile commands of a build tree that was configured for ninja, rewritten to put their objects elsewhere."""

import json
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_COMPILER_CACHES = {"ccache", "sccache"}
# Options that have the compiler write a file of dependencies, and how many words follow each.
_DEPENDENCY_OPTIONS = {"-MT": 1, "-MF": 1, "-MQ": 1, "-MD": 0, "-MMD": 0}


@dataclass(frozen=True, slots=True)
class Command:
    """How one object is compiled, and in which folder."""

    folder: Path
    argv: tuple[str, ...]

    def with_output(self, path: str, flags: Sequence[str] = ()) -> list[str]:
        """Return the command with more flags and with its object at `path`.

        It starts the compiler itself, if the original one starts a compiler cache, and writes no dependency file.
        """
        words = list(self.argv)
        if Path(words[0]).name in _COMPILER_CACHES:
            del words[0]
        kept_words: list[str] = []
        remaining = iter(words)
        for word in remaining:
            if word == "-o":
                next(remaining)
            elif word in _DEPENDENCY_OPTIONS:
                for _ in range(_DEPENDENCY_OPTIONS[word]):
                    next(remaining)
            else:
                kept_words.append(word)
        return [*kept_words, *flags, "-o", path]


def read_commands(tree: Path) -> Mapping[str, Command]:
    """Return the compile commands of a build tree by source; paths begin in the folder of the tree.

    If a source is compiled several times, its first command counts.
    """
    ninja = ["ninja", "-C", str(tree), "-t", "compdb"]
    output = subprocess.run(ninja, check=True, capture_output=True).stdout
    package = tree.resolve().parent
    commands: dict[str, Command] = {}
    # ninja may print a line "Entering directory" before the list.
    for entry in json.loads(output[output.index(b"[") :]):
        folder = Path(entry["directory"])
        source = package.joinpath(folder, entry["file"])
        if " -c " in entry["command"] and source.is_relative_to(package):
            command = Command(folder, tuple(shlex.split(entry["command"])))
            commands.setdefault(str(source.relative_to(package)), command)
    return commands
