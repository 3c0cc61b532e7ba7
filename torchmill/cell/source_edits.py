"""Files of a tree's source that are not as they were fetched and patched: somebody edited them.

The tree's `patched_file` lists the files that are meant to differ from the fetched ones, with their
digests: a patch changed them, or a build did.
"""

import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path

from torchmill.cell import added_files
from torchmill.cell.context import BuildContext
from torchmill.core.atomic_writes import write_atomically
from torchmill.core.strict_json import load_object


def find_edits(context: BuildContext) -> dict[str, str]:
    """Return the source files in the tree that somebody edited or added, with their digests.

    Changes by patches or by a build do not count as edits, nor do files that setuptools writes anew
    each time. A file that is gone is left out.
    """
    differing = find_differing_sources(context, load_object(context.tree.patched_file))
    edits = {name: digest for name, digest in differing.items() if digest}
    for name in added_files.find_added_files(context.tree, context.source.path):
        edits[name] = context.stat_cache.digest(context.tree.source / name) or ""
    return edits


def record_generated_files(context: BuildContext, edits: Mapping[str, str]) -> None:
    """Record the end of a build, and the source files that it changed.

    From now on, they do not count as edits. `edits` are the edits that `find_edits` returned before
    the build began.
    """
    added_files.end_build(context.tree, context.source.path)
    generated = {}
    for name, digest in find_edits(context).items():
        if name not in edits:
            generated[name] = digest
    if generated:
        patched = load_object(context.tree.patched_file) | generated
        write_atomically(context.tree.patched_file, json.dumps(patched))


def find_differing_sources(
    context: BuildContext, expected_digests: Mapping[str, str]
) -> dict[str, str]:
    """Return the source files that differ from the fetched ones, with their digests in the tree.

    `expected_digests` has the digests of files that are meant to differ: a file with the expected
    digest is left out. So is a file that has the size and the date of the fetched one: to read all
    files would take minutes. The digest of a file that is missing in the tree is "". Files that only
    the tree has are not looked for (see `added_files`).
    """
    differing = {}
    for parent, folders, names in os.walk(context.source.path):
        # git writes its index anew, and setuptools does so with an .egg-info in a source archive.
        folders[:] = [name for name in folders if name != ".git" and not name.endswith(".egg-info")]
        for file_name in names:
            fetched = Path(parent, file_name)
            path = fetched.relative_to(context.source.path)
            copy = context.tree.source / path
            # The tree's copy has the date of its original unless somebody changed it.
            if _size_and_date(copy) == _size_and_date(fetched) or not fetched.is_file():
                continue
            digest = context.stat_cache.digest(copy) or ""
            name = str(path)
            if digest not in (expected_digests.get(name), context.stat_cache.digest(fetched)):
                differing[name] = digest
    return differing


def _size_and_date(file: Path) -> tuple[int, int] | None:
    """Return the bytes and the date of a file, in nanoseconds; None if it is missing."""
    with contextlib.suppress(OSError):
        status = file.lstat()
        return status.st_size, status.st_mtime_ns
    return None
