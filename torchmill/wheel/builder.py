"""Who builds a wheel: this version of torchmill, on whose machine. Loads nothing else."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping

from torchmill.core.paths import CHECKOUT

LOCAL_BUILDER = "urn:torchmill:local"  # nobody vouches for the machine
_PROJECT = CHECKOUT / "pyproject.toml"
_GITHUB_ACTIONS = ("GITHUB_SERVER_URL", "GITHUB_REPOSITORY", "GITHUB_WORKFLOW_REF", "GITHUB_RUN_ID")


def describe_builder(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the builder as a manifest records it: "id" (a URI), "invocation" where it has one.

    TORCHMILL_BUILDER names it; in GitHub Actions it is the workflow, at the commit that runs
    (https://docs.github.com/actions/reference/workflows-and-actions/variables).
    """
    builder = {"id": environ.get("TORCHMILL_BUILDER") or LOCAL_BUILDER}
    if not environ.get("TORCHMILL_BUILDER") and all(environ.get(name) for name in _GITHUB_ACTIONS):
        server, repository, workflow, run = (environ[name] for name in _GITHUB_ACTIONS)
        attempt = environ.get("GITHUB_RUN_ATTEMPT", "1")
        invocation = f"{server}/{repository}/actions/runs/{run}/attempts/{attempt}"
        builder = {"id": f"{server}/{workflow}", "invocation": invocation}
    return {**builder, "torchmill": suite_version()}


def suite_version() -> str:
    """Return the version of torchmill; "unknown" where it runs outside its checkout."""
    try:
        return str(tomllib.loads(_PROJECT.read_text("utf-8"))["project"]["version"])
    except (OSError, KeyError, tomllib.TOMLDecodeError):
        return "unknown"
