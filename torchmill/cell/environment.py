"""The environment variables of a build: sealed from the user's shell, filled in from its plan."""

import os
from collections.abc import Mapping
from string import Template

from torchmill.cell.context import BuildContext
from torchmill.cell.hidden_nvcc import hide_nvcc
from torchmill.core.errors import ConfigError
from torchmill.plan import shell_seal
from torchmill.plan.plan import Plan


def build_environment(context: BuildContext, ours: Mapping[str, str]) -> dict[str, str]:
    """Return the whole environment of the build: variables of the user's shell, and the plan's.

    `ours` (compiler cache, gate) yields to both, so a cache that the user has set up stays the
    user's. Only listed variables of the shell get through.
    """
    shell = shell_seal.sealed_variables(os.environ, passing_patterns(context.plan))
    places = {**context.placeholders, "PATH": visible_path(context)}
    planned = {}
    for name, value in context.plan.variables.items():
        planned[name] = fill_placeholders(value, places)
    return {**ours, **shell, **planned}


def passing_patterns(plan: Plan) -> tuple[str, ...]:
    """Return the patterns of the variables that a build gets from the environment of this process."""
    if shell_seal.is_in_container(os.environ):
        return (*plan.shell_patterns, *shell_seal.CONTAINER_PATTERNS)
    return plan.shell_patterns


def describe_unread(plan: Plan) -> str:
    """Return a sentence that names the shell's settings that the build does not get; "" without any."""
    prefix = plan.build.package.upper().replace("-", "_") + "_"
    dropped = shell_seal.dropped_settings(os.environ, passing_patterns(plan), [prefix])
    names = ", ".join(dropped)
    if not names:
        return ""
    return (
        f"not read from your shell: {names}; "
        "`--arch-list`, `--jobs`, `--set NAME=VALUE` set such things"
    )


def visible_path(context: BuildContext) -> str:
    """Return the PATH of the user's shell as the build sees it: without CUDA there is no nvcc on it.

    PyTorch's build helper for extensions looks for nvcc on PATH, and many a setup.py compiles CUDA
    if it finds one:
    https://github.com/pytorch/pytorch/blob/main/torch/utils/cpp_extension.py
    """
    path = os.environ.get("PATH", os.defpath)
    if context.plan.cuda.toolkit is not None:
        return path
    return hide_nvcc(path, context.tree.folder / "without-nvcc")


def fill_placeholders(text: str, places: Mapping[str, str]) -> str:
    """Fill in the ${…} of a plan. Raises ConfigError for a name that stands for nothing."""
    try:
        return Template(text).substitute(places)
    except (KeyError, ValueError) as error:
        raise ConfigError(
            f"{text}: unknown placeholder {error} in build_configs", code="unknown-placeholder"
        ) from None
