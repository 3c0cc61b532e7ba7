"""Digests of everything that changes the result of a build: tree, environment and commands.

A tree is a copy of the source, prepared and configured, in which the wheels of several interpreters
are compiled one after the other. A stage of a build runs again if its digest differs from the
recorded one. Inputs that change only the speed, such as the number of jobs, are in no digest.
"""

import hashlib
import re
import shlex
from collections.abc import Mapping

from torchmill.core.stat_cache import digest_data
from torchmill.fetch.source.source import Source
from torchmill.plan.plan import Plan

_DIGEST = re.compile(r"[0-9a-f]{40,64}")  # a commit, or a sha256


def tree_inputs(
    plan: Plan, source: Source, patches: Mapping[str, bytes], machine_inputs: Mapping[str, str]
) -> dict[str, str]:
    """Return the inputs of a tree, by name: those that are the same for every interpreter.

    `patches` has the content of each patch of the plan, `machine_inputs` the inputs that come from
    the machine: compilers, a toolkit, the user's variables.
    """
    # Users read these names (describe_changed_inputs). Changing a name makes every tree stale.
    inputs = {f"setting {name}": value for name, value in plan.switches.items()}
    inputs["build tools"] = ", ".join(plan.tree.kit)
    inputs["patches"] = ", ".join(plan.tree.patches)
    for patch in plan.tree.patches:
        inputs[f"patch {patch}"] = hashlib.sha256(patches[patch]).hexdigest()
    commands = [shlex.join(command.argv) for command in plan.tree.preparation]
    inputs["preparation"] = "; ".join(commands)
    inputs["source"] = f"{source.provider} {source.identity}"
    for path_in_source, commit in source.submodules.items():
        inputs[f"submodule {path_in_source}"] = commit
    for name, value in machine_inputs.items():
        inputs[f"machine's {name}"] = value
    return inputs


def tree_key(inputs: Mapping[str, str]) -> str:
    """Return the digest of a tree's inputs, which is part of the tree's name."""
    return digest_data(dict(inputs))


def describe_changed_inputs(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    """Return the differences between two inputs of a tree: "setting USE_MPI (1, was 0)".

    Digests and commits are not shown, because their values tell people nothing.
    """
    changes: list[str] = []
    for name in sorted(before.keys() | after.keys()):
        old = before.get(name)
        new = after.get(name)
        if old == new:
            continue
        if old is None:
            changes.append(f"{name} (new)")
        elif new is None:
            changes.append(f"{name} (gone)")
        elif _DIGEST.fullmatch(new) or _DIGEST.fullmatch(old):
            changes.append(name)
        else:
            changes.append(f"{name} ({new or 'none'}, was {old or 'none'})")
    return changes


def environment_key(plan: Plan, tools: Mapping[str, str]) -> str:
    """Return the digest of everything that is installed into an environment for a build.

    `tools` names the interpreter, and the wheel that a dependent package is built against.
    """
    inputs = {
        "python": plan.build.python,
        "requirements": plan.requirements,
        "tools": dict(tools),
    }
    return digest_data(inputs)


def compile_key(tree: str, environment: str, plan: Plan) -> str:
    """Return the digest of everything that changes the compiled objects for one interpreter.

    `tree` is the tree's key, `environment` the environment's.
    """
    commands = [command.argv for command in plan.commands]
    return digest_data({"tree": tree, "environment": environment, "compile": commands})
