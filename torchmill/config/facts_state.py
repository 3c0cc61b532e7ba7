"""The state of all files that decide the facts of a folder, as one stat.

Callers remember what they computed from facts for as long as this state is the same. Nothing of the
facts is imported here, so that to find out takes few milliseconds.
"""

import sys
from pathlib import Path

import packaging

from torchmill.core.paths import PACKAGE
from torchmill.core.stat_cache import FileStat, stat_file, stat_folder

_CODE = ("config", "core")  # the wings that read facts
_SKIPPED = (".git", "__pycache__")


def read_facts_state(folder: Path, *wings: str) -> FileStat:
    """Return the state of a folder of facts and of the code that reads them.

    `wings` are folders of the package with further code that decides a result: "plan". The state
    also changes with Python, and with the library whose classes versions and specifiers are.
    """
    parts = [stat_folder(folder, _SKIPPED)]
    parts += [stat_folder(PACKAGE / wing, _SKIPPED) for wing in (*_CODE, *wings)]
    library = stat_file(packaging.__file__)
    if library is not None:
        parts.append(library)
    texts = [str(folder), sys.version, *(part.text for part in parts)]
    return FileStat("\n".join(texts), max(part.changed_ns for part in parts))
