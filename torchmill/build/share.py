"""A build that does not go to its end: one share of its compiles, or as much as some time allows."""

import contextlib
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import psutil

from torchmill.build.context import BuildContext
from torchmill.core.errors import BuildError, ConfigError, UnfinishedBuildError
from torchmill.core.files import read_json_object
from torchmill.core.process import CommandError, TimeUpError, end_after
from torchmill.toolchain import shards
from torchmill.toolchain.guard.expectations import relevant_units
from torchmill.toolchain.shards import Shard


def order_share(context: BuildContext, environ: Mapping[str, str]) -> dict[str, str]:
    """Let ninja compile the share that was asked for; return the variables that change, {} for a whole build.

    Raises ConfigError for a share that there is not, OSError where the tree cannot be written.
    """
    if context.options.shard is None:
        return {}
    shard, parts = _shard(context), Path(context.options.parts or "")
    shard.record(parts).unlink(missing_ok=True)
    folder = context.tree.folder / "shard"
    units = relevant_units(context.facts.units, context.package.name, context.plan.release.version)
    costs = [(unit.pattern, unit.seconds) for unit in units if unit.seconds]
    about = {"session": context.plan.identifier, "tree": context.tree_key, "parts": str(parts)}
    shards.write_order(folder / "order.json", shard, costs, about)
    path = shards.stand_in(folder, environ.get("PATH", os.defpath), context.tree.build / "CMakeCache.txt")
    return {"PATH": path, shards.ORDER_VARIABLE: str(folder / "order.json")}


@contextlib.contextmanager
def end_as_asked(context: BuildContext) -> Iterator[None]:
    """Let the commands of a build run until it is over, its share is made, or its time is up.

    Raises UnfinishedBuildError for the latter two, BuildError for a build that cannot be shared.
    """
    options, name = context.options, context.plan.identifier
    began = psutil.Process().create_time()
    try:
        with end_after(None if options.until is None else options.until - (time.time() - began)):
            yield
    except TimeUpError:
        raise UnfinishedBuildError(
            f"{name}: the time of --until is up; the same command goes on from there", code="time-up"
        ) from None
    except CommandError:
        if options.shard is not None:
            _require_unmade(context)
        raise
    if options.shard is not None:
        raise BuildError(
            f"{name}: its build compiles without ninja, and cannot be shared: leave out --shard", code="not-shared"
        )


def _shard(context: BuildContext) -> Shard:
    try:
        return shards.parse_shard(context.options.shard or "", os.environ)
    except ValueError as error:
        raise ConfigError(f"--shard: {error}", code="invalid-shard") from None


def _require_unmade(context: BuildContext) -> None:
    """Raise UnfinishedBuildError where a build ended because its share is made."""
    shard, parts, name = _shard(context), Path(context.options.parts or ""), context.plan.identifier
    try:
        said = read_json_object(shard.record(parts))
    except (OSError, ValueError):  # it came not so far
        return
    if not said["failed"]:
        raise UnfinishedBuildError(
            f"{name}: share {shard} is made, {said['made']} of {said['compiles']} compiles, in {parts}; when all "
            f"are: nox -s {name} -- --parts {parts}",
            code="share-made",
        )
