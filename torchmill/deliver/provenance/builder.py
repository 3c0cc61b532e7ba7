"""Who builds: this suite, on whose machine."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path

LOCAL = "urn:torchmill:local"  # nobody vouches for the machine
_PROJECT = Path(__file__).parents[3] / "pyproject.toml"
_ACTIONS = ("GITHUB_SERVER_URL", "GITHUB_REPOSITORY", "GITHUB_WORKFLOW_REF", "GITHUB_RUN_ID")


def of(environ: Mapping[str, str]) -> dict[str, str]:
    """Return what a manifest says of the builder: "id" (a URI), "invocation" where it has one.

    TORCHMILL_BUILDER names it; in GitHub Actions it is the workflow, at the commit that runs
    (https://docs.github.com/actions/reference/workflows-and-actions/variables).
    """
    if named := environ.get("TORCHMILL_BUILDER"):
        return {"id": named, "torchmill": version()}
    if all(environ.get(name) for name in _ACTIONS):
        server, repository, workflow, run = (environ[name] for name in _ACTIONS)
        attempt = environ.get("GITHUB_RUN_ATTEMPT", "1")
        invocation = f"{server}/{repository}/actions/runs/{run}/attempts/{attempt}"
        return {"id": f"{server}/{workflow}", "invocation": invocation, "torchmill": version()}
    return {"id": LOCAL, "torchmill": version()}


def version() -> str:
    """Return the version of this suite."""
    try:
        found = tomllib.loads(_PROJECT.read_text("utf-8"))["project"]["version"]
    except (OSError, KeyError, tomllib.TOMLDecodeError):
        return "unknown"
    return str(found)
