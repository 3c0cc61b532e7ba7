"""The environment variables of a build: sealed from the user's shell, filled in from its plan."""

import os
from collections.abc import Mapping
from pathlib import Path
from string import Template

from torchmill.cell.context import BuildContext
from torchmill.cell.hidden_nvcc import hide_nvcc
from torchmill.core.errors import ConfigError
from torchmill.core.lenient_paths import real_path
from torchmill.host.host import Host
from torchmill.host.provisioned import COMPLETED
from torchmill.plan import shell_seal
from torchmill.plan.plan import Plan

_TOOLKIT_VARIABLES = ("CUDA_HOME", "CUDA_PATH")  # by which a user names a toolkit


def build_environment(context: BuildContext, tool_variables: Mapping[str, str]) -> dict[str, str]:
    """Return the whole environment of the build.

    The plan's variables win over those of the user's shell, of which only listed ones get through.
    `tool_variables` are those of the compiler cache and the gate. Both others win over them, so
    that a cache which the user has set up stays in use. Folders of links may be made in the tree
    (`visible_path`).
    """
    shell = shell_seal.passed_variables(os.environ, passing_patterns(context.plan))
    places = {**context.placeholders, "PATH": visible_path(context)}
    planned = {}
    for name, value in context.plan.variables.items():
        planned[name] = fill_placeholders(value, places)
    return {**tool_variables, **shell, **planned}


def passing_patterns(plan: Plan) -> tuple[str, ...]:
    """Return the patterns of the variables that a build gets from the environment of this process."""
    if shell_seal.is_in_container(os.environ):
        return (*plan.shell_patterns, *shell_seal.CONTAINER_PATTERNS)
    return plan.shell_patterns


def describe_unread(plan: Plan) -> str:
    """Return a sentence that names settings of the user's shell that a build ignores; "" if none."""
    prefix = plan.build.package.upper().replace("-", "_") + "_"
    dropped = shell_seal.dropped_settings(os.environ, passing_patterns(plan), [prefix])
    names = ", ".join(dropped)
    if not names:
        return ""
    return (
        f"not read from your shell: {names}; "
        "`--arch-list`, `--jobs`, `--set NAME=VALUE` set such things"
    )


def describe_ignored_toolkit(
    environ: Mapping[str, str], host: Host, version: str | None
) -> str | None:
    """Return a sentence on the toolkit that the user's shell names and a build does not use.

    `version` is the build's toolkit, None without CUDA. The result is None for a build without
    CUDA, and if the shell names no toolkit, or the build's.
    """
    if version is None:
        return None
    home = host.toolkits.homes.get(version)
    # If a user's toolkit lacked parts, the build uses a completed copy, which links to it.
    completed_folder = host.toolkits.completed.get(version, "").partition(COMPLETED)[0]
    used_folders = {real_path(folder) for folder in (home, completed_folder) if folder}
    version_by_folder: dict[Path, str] = {}
    for other_version, other_home in host.toolkits.homes.items():
        version_by_folder.setdefault(real_path(other_home), other_version)
    for name in _TOOLKIT_VARIABLES:
        folder = environ.get(name)
        if not folder or real_path(folder) in used_folders:
            continue
        content = "no toolkit that can be used"
        ignored_version = version_by_folder.get(real_path(folder))
        if ignored_version is not None:
            content = f"CUDA {ignored_version}"
        subject = f"{name}={folder} holds {content}; the build needs CUDA {version}"
        if home:
            return f"{subject}, which it takes from {home}"
        return f"{subject}, which it finds nowhere"
    return None


def visible_path(context: BuildContext) -> str:
    """Return the PATH of the user's shell, without nvcc if the build has no CUDA.

    A folder with an nvcc is replaced by a folder of links in the tree, which is made. PyTorch's
    build helper for extensions looks for nvcc on PATH, and many a setup.py compiles CUDA if it
    finds one: https://github.com/pytorch/pytorch/blob/main/torch/utils/cpp_extension.py
    """
    path = os.environ.get("PATH", os.defpath)
    if context.plan.cuda.toolkit is not None:
        return path
    return hide_nvcc(path, context.tree.folder / "without-nvcc")


def fill_placeholders(text: str, places: Mapping[str, str]) -> str:
    """Return a text of a plan with the values of its placeholders ${…}.

    "$$" stands for a dollar sign: facts write the loader's $ORIGIN as "$$ORIGIN", and each "$" of a
    user's setting is doubled when it enters a plan. Raises ConfigError for a placeholder that
    `places` lacks.
    """
    try:
        return Template(text).substitute(places)
    except (KeyError, ValueError) as error:
        raise ConfigError(
            f"{text}: unknown placeholder {error} in build_configs", code="unknown-placeholder"
        ) from None
