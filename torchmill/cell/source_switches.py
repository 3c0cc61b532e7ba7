"""The switches, such as USE_MKLDNN, that the build files of a fetched source name."""

from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import Path

from torchmill.plan.doctor.finding import CheckContext
from torchmill.plan.doctor.source import SWITCH, doubtful_switches

# Patterns of files that read switches. The files of the first ones name most switches, so the slow
# "**" is needed only for rare ones. It also finds the files of third_party/, whose parts read
# switches of their own, and once more those of the other patterns.
_BUILD_FILES = (
    "setup.py",
    "CMakeLists.txt",
    "cmake/*.cmake",
    "tools/**/*.py",
    "**/CMakeLists.txt",
    "**/*.cmake",
)


def with_source_switches(context: CheckContext) -> CheckContext:
    """Return the input of the doctor's checks with the switches that the source names.

    Without a fetched source, `context` is returned as it is.
    """
    if context.source is None:
        return context
    switches = find_switches(context.source.path, doubtful_switches(context))
    return replace(context, source_switches=switches)


def find_switches(folder: Path, names: Collection[str]) -> frozenset[str]:
    """Return the switches that the build files in a folder name.

    The search ends as soon as all of `names` were read. Other switches may then be missing in the
    result.
    """
    switches: set[str] = set()
    for file in _build_files(folder):
        if switches.issuperset(names):
            break
        switches.update(SWITCH.findall(file.read_text("utf-8", "replace")))
    return frozenset(switches)


def _build_files(folder: Path) -> Iterator[Path]:
    """Yield the files of a source that read switches, those with most switches first."""
    for pattern in _BUILD_FILES:
        for path in folder.glob(pattern):
            if path.is_file():
                yield path
