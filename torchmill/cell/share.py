"""A build that does not go to its end: one share of its compiles, or as much as some time allows."""

import contextlib
import json
import os
import shlex
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import psutil

from torchmill.cell.context import BuildContext
from torchmill.core.atomic_writes import write_atomically
from torchmill.core.errors import BuildError, UnfinishedBuildError
from torchmill.core.ninja import EdgePace, unmade_outputs
from torchmill.core.process import CommandError, TimeUpError, end_after
from torchmill.core.strict_json import load_object
from torchmill.plan.options import format_options
from torchmill.toolchain import shards
from torchmill.toolchain.shards import parse_shard


def order_share(context: BuildContext, environ: dict[str, str]) -> dict[str, str]:
    """Let ninja compile the share that was asked for; return the variables of the build, with those that change.

    Raises ConfigError for a share that there is not, OSError where the tree cannot be written.
    """
    options, tree = context.options, context.tree
    if options.shard is None:
        return environ
    shard, parts = parse_shard(options.shard, {}), Path(options.parts or "")
    shard.record(parts).unlink(missing_ok=True)
    folder = tree.folder / "shard"
    order = {
        "number": shard.number,
        "count": shard.count,
        "costs": _known_costs(context),
        "parts": str(parts),
    }
    order |= {
        "session": context.plan.identifier,
        "tree": context.tree_key,
    }  # for the record of the share
    write_atomically(folder / "order.json", json.dumps(order))
    program = shards.stand_in(
        folder, environ.get("PATH", os.defpath), tree.build / "CMakeCache.txt"
    )
    return {**environ, **program, shards.ORDER_VARIABLE: str(folder / "order.json")}


def pace_by_costs(context: BuildContext) -> EdgePace:
    """Return the pace of a build by what its compiles are known to cost."""
    weigh = partial(shards.expected_seconds, costs=_known_costs(context))
    return EdgePace(weigh, lambda: unmade_outputs(context.tree.build))


def _known_costs(context: BuildContext) -> list[tuple[str, float]]:
    """Return the patterns of sources whose time is known, each with its seconds."""
    return [(unit.pattern, unit.seconds) for unit in context.known_units if unit.seconds]


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
            f"{name}: the time of --until is up; the same command goes on from there",
            code="time-up",
        ) from None
    except CommandError:
        if options.shard is not None:
            shard, parts = parse_shard(options.shard, {}), Path(options.parts or "")
            said = load_object(shard.record(parts))  # nothing where it came not so far
            if said and not said["failed"]:
                words = shlex.join(
                    [
                        "nox",
                        "-s",
                        name,
                        "--",
                        *format_options(replace(options, shard=None, until=None)),
                    ]
                )
                raise UnfinishedBuildError(
                    f"{name}: share {shard} is made, {said['made']} of {said['compiles']} compiles, in {parts}; when "
                    f"all are: {words}, or with the folder that has all of them",
                    code="share-made",
                ) from None
        raise
    if options.shard is not None:
        raise BuildError(
            f"{name}: its build compiles without ninja, and cannot be shared: leave out --shard",
            code="not-shared",
        )
