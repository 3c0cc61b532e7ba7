"""A build that ends early: after one share of its compiles, or when its time is up.

Several machines can compile one build together (`--shard 3/16`): each compiles its share of the
files, and puts the objects into a folder of parts. A stand-in for ninja (toolchain/shards.py) makes
the share and then stops the build. A last build takes the objects of all parts.
"""

import contextlib
import json
import os
import shlex
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

from torchmill.cell.context import BuildContext
from torchmill.core.atomic_writes import write_atomically
from torchmill.core.errors import BuildError, UnfinishedBuildError
from torchmill.core.ninja import EdgePace, unmade_outputs
from torchmill.core.process import CommandError, TimeUpError, end_after, own_age
from torchmill.core.strict_json import load_object
from torchmill.plan.options import format_options
from torchmill.toolchain import shards
from torchmill.toolchain.shards import Shard, parse_shard


def request_share(context: BuildContext, environ: dict[str, str]) -> dict[str, str]:
    """Write the order for the share that the user asks for; return the variables of the build.

    The variables are `environ` and further ones, which make CMake use the stand-in instead of
    ninja. The stand-in compiles what the order says. An earlier record that the share is made is
    deleted. Without `--shard`, `environ` is returned unchanged. Raises OSError if the tree or the
    folder of `--parts` cannot be written.
    """
    options = context.options
    tree = context.tree
    if options.shard is None:
        return environ
    shard = _parse_resolved_shard(options.shard)
    parts = _parts_folder(context)
    # A record means that the share is made. That of an earlier run must not count for this one.
    shard.record(parts).unlink(missing_ok=True)
    folder = tree.folder / "shard"
    order = {
        "number": shard.number,
        "count": shard.count,
        "costs": _known_costs(context),
        "parts": str(parts),
        # The stand-in copies these two into the record of the share.
        "session": context.plan.identifier,
        "tree": context.tree_key,
    }
    order_file = folder / "order.json"
    write_atomically(order_file, json.dumps(order))
    path = environ.get("PATH", os.defpath)
    stand_in_variables = shards.write_stand_in(folder, path, tree.build / "CMakeCache.txt")
    return {**environ, **stand_in_variables, shards.ORDER_VARIABLE: str(order_file)}


def pace_by_costs(context: BuildContext) -> EdgePace:
    """Return the measure of a build's progress that weighs each compile by its expected seconds."""
    weigh = partial(shards.expected_seconds, costs=_known_costs(context))
    return EdgePace(weigh, lambda: unmade_outputs(context.tree.build))


@contextlib.contextmanager
def report_planned_end(context: BuildContext) -> Iterator[None]:
    """Run the commands of a build inside this context, until its share is made or its time is up.

    Raises UnfinishedBuildError in either case, and BuildError if a share was requested, but the
    build did not use ninja and compiled everything.
    """
    options = context.options
    identifier = context.plan.identifier
    remaining_seconds = None
    if options.until is not None:
        # The time of --until counts from the start of this process.
        remaining_seconds = options.until - own_age()
    try:
        with end_after(remaining_seconds):
            yield
    except TimeUpError:
        raise UnfinishedBuildError(
            f"{identifier}: the time of --until is up; the same command goes on from there",
            code="time-up",
        ) from None
    except CommandError:
        # The stand-in for ninja ends with an error on purpose, after it has recorded its share.
        if options.shard is not None:
            _raise_if_share_made(context, options.shard)
        raise
    # A build that ends well has not called the stand-in, which always ends it with an error.
    if options.shard is not None:
        raise BuildError(
            f"{identifier}: this build does not use ninja, so it cannot be shared; all of it is "
            "compiled now: run the command again without --shard to make the wheel",
            code="not-shared",
        )


def _raise_if_share_made(context: BuildContext, text: str) -> None:
    """Raise UnfinishedBuildError if the share `text` ("3/16") was made without failures.

    Its message has the command that joins all shares.
    """
    options = context.options
    shard = _parse_resolved_shard(text)
    parts = _parts_folder(context)
    # The record has all its keys: this run has deleted an older one, and the stand-in writes the
    # record in one move.
    record = load_object(shard.record(parts))
    if not record or record["failed"]:
        return
    joining_options = format_options(replace(options, shard=None, until=None))
    command = shlex.join(["nox", "-s", context.plan.identifier, "--", *joining_options])
    raise UnfinishedBuildError(
        f"{context.plan.identifier}: share {shard} is made, "
        f"{record['made']} of {record['compiles']} compiles, in {parts}; "
        f"once all shares are made, run: {command} (--parts may name any folder that has all of "
        "them)",
        code="share-made",
    ) from None


def _parse_resolved_shard(text: str) -> Shard:
    """Return the share of `--shard`, in which the parser of options has replaced "auto"."""
    return parse_shard(text, environ={})


def _parts_folder(context: BuildContext) -> Path:
    """Return the folder of parts, an absolute path; `--shard` is refused without `--parts`."""
    return Path(context.options.parts or "")


def _known_costs(context: BuildContext) -> list[tuple[str, float]]:
    """Return the patterns of sources whose compile time is known, each with its seconds."""
    return [(unit.pattern, unit.seconds) for unit in context.known_units if unit.seconds]
