"""Digests of everything that changes the result of a build: tree, environment and commands.

A stage runs again if its digest differs from the recorded one. What changes only the speed, such as
the number of jobs, is in no digest.
"""

import hashlib
import re
import shlex
from collections.abc import Mapping
from pathlib import Path

from torchmill.core.stat_cache import digest_data
from torchmill.fetch.source.source import Source
from torchmill.plan.plan import Plan

_DIGEST = re.compile(r"[0-9a-f]{40,64}")


def tree_inputs(
    plan: Plan, source: Source, patches: Path, machine_inputs: Mapping[str, str]
) -> dict[str, str]:
    """Return, by name, everything that is the same for every interpreter that a tree can serve.

    `patches` is the folder of the project's patches. `machine_inputs` names what the machine adds:
    compilers, a toolkit, the user's variables.
    """
    # Users read these names (describe_changed_inputs). To change one makes every tree stale.
    inputs = {f"setting {name}": value for name, value in plan.switches.items()}
    inputs["build tools"] = ", ".join(plan.tree.kit)
    inputs["patches"] = ", ".join(plan.tree.patches)
    for patch in plan.tree.patches:
        path = patches / plan.tree.user_patches.get(patch, patch)
        inputs[f"patch {patch}"] = hashlib.sha256(path.read_bytes()).hexdigest()
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
    """Return the differences between the inputs of two trees: "setting USE_MPI (1, was 0)".

    Of an input that is a digest, only the name is returned.
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
    """Return a digest of the purpose of an environment.

    `tools` names the interpreter, and the wheel that a dependent package is built against.
    """
    inputs = {
        "python": plan.build.python,
        "requirements": plan.requirements,
        "tools": dict(tools),
    }
    return digest_data(inputs)


def compile_key(tree: str, environment: str, plan: Plan) -> str:
    """Return a digest of everything that changes the compiled objects of one interpreter's build.

    `tree` and `environment` are the keys of these two.
    """
    commands = [command.argv for command in plan.commands]
    return digest_data({"tree": tree, "environment": environment, "compile": commands})
