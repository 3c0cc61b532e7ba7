"""Digests of everything that can change a tree, an environment, or what is compiled."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

from torchmill.config.model import SPEED_ONLY_SWITCHES, Plan, Source


def tree_key(plan: Plan, source: Source, patches: Path, machine_inputs: Mapping[str, str]) -> str:
    """Return a digest of all that is the same for every interpreter that a tree can serve.

    `machine_inputs` names what the machine puts in: compilers, a toolkit, variables that are the user's.
    """
    return _digest(
        {
            "set": {name: value for name, value in plan.set.items() if name not in SPEED_ONLY_SWITCHES},
            "kit": plan.kit,
            "patches": [(patches / patch).read_text(encoding="utf-8") for patch in plan.patches],
            "prepare": [command.argv for command in plan.prepare],
            "source": [source.provider, source.origin, source.commit, dict(source.submodules)],
            "ground": dict(machine_inputs),
        }
    )


def environment_key(plan: Plan, tools: Mapping[str, str]) -> str:
    """Return a digest of what an environment is made for.

    `tools` names the interpreter, and the wheel that a dependent package is built against.
    """
    return _digest({"python": plan.build.python, "requirements": plan.requirements, "tools": dict(tools)})


def compile_key(tree: str, environment: str, plan: Plan) -> str:
    """Return a digest of all that can change what one interpreter's build compiles in a tree."""
    commands = [command.argv for command in plan.compile]
    return _digest({"tree": tree, "environment": environment, "compile": commands})


def _digest(parts: Mapping[str, object]) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
