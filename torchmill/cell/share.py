"""A build that ends early: after one share of its compiles, or when its time is up."""

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
    """Have ninja compile only the share that was asked for; return the variables of the build.

    Raises ConfigError for a share that does not exist, OSError if the tree cannot be written.
    """
    options = context.options
    tree = context.tree
    if options.shard is None:
        return environ
    shard = parse_shard(options.shard, {})
    parts = Path(options.parts or "")
    shard.record(parts).unlink(missing_ok=True)
    folder = tree.folder / "shard"
    order = {
        "number": shard.number,
        "count": shard.count,
        "costs": _known_costs(context),
        "parts": str(parts),
        # for the record of the share
        "session": context.plan.identifier,
        "tree": context.tree_key,
    }
    order_file = folder / "order.json"
    write_atomically(order_file, json.dumps(order))
    path = environ.get("PATH", os.defpath)
    program = shards.stand_in(folder, path, tree.build / "CMakeCache.txt")
    return {**environ, **program, shards.ORDER_VARIABLE: str(order_file)}


def pace_by_costs(context: BuildContext) -> EdgePace:
    """Return the pace of a build by the known costs of its compiles."""
    weigh = partial(shards.expected_seconds, costs=_known_costs(context))
    return EdgePace(weigh, lambda: unmade_outputs(context.tree.build))


@contextlib.contextmanager
def end_as_asked(context: BuildContext) -> Iterator[None]:
    """Let the commands of a build run until it is done, its share is made, or its time is up.

    Raises UnfinishedBuildError for the latter two, BuildError for a build that cannot be shared.
    """
    options = context.options
    identifier = context.plan.identifier
    remaining = None
    if options.until is not None:
        began = psutil.Process().create_time()
        remaining = options.until - (time.time() - began)
    try:
        with end_after(remaining):
            yield
    except TimeUpError:
        raise UnfinishedBuildError(
            f"{identifier}: the time of --until is up; the same command goes on from there",
            code="time-up",
        ) from None
    except CommandError:
        # The stand-in for ninja ends with an error on purpose, after it has recorded its share.
        if options.shard is not None:
            _report_made_share(context, options.shard)
        raise
    if options.shard is not None:
        raise BuildError(
            f"{identifier}: its build compiles without ninja, and cannot be shared: leave out --shard",
            code="not-shared",
        )


def _report_made_share(context: BuildContext, text: str) -> None:
    """Raise UnfinishedBuildError if a share was made; it names the command that joins all."""
    options = context.options
    shard = parse_shard(text, {})
    parts = Path(options.parts or "")
    record = load_object(shard.record(parts))
    if not record or record["failed"]:
        return
    joined = format_options(replace(options, shard=None, until=None))
    command = shlex.join(["nox", "-s", context.plan.identifier, "--", *joined])
    raise UnfinishedBuildError(
        f"{context.plan.identifier}: share {shard} is made, "
        f"{record['made']} of {record['compiles']} compiles, in {parts}; "
        f"when all are: {command}, or with the folder that has all of them",
        code="share-made",
    ) from None


def _known_costs(context: BuildContext) -> list[tuple[str, float]]:
    """Return the patterns of sources whose compile time is known, each with its seconds."""
    return [(unit.pattern, unit.seconds) for unit in context.known_units if unit.seconds]
