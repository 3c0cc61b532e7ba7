"""What is told of a wheel beside it: everything worth knowing when its build is forgotten."""

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from torchmill import ledger
from torchmill.ledger import Entry
from torchmill.model import Options
from torchmill.workshop import Job

_IRRELEVANT = {"jobs", "memory", "guard"}  # options that change how fast, not what


def compose(job: Job, entries: Mapping[str, Entry], before: Mapping[str, Any], wheel: str) -> dict[str, Any]:
    """Return the manifest of the file `wheel`, whose stages are done.

    An entry that comes from the manifest `before` says nothing of itself: that manifest told it.
    """
    plan, source = job.plan, job.source
    told = {} if all(entry.said for entry in entries.values()) else dict(before)
    seconds = dict(told.get("seconds", {}))
    for entry in entries.values():
        seconds |= entry.said.get("seconds", {})
        told |= entry.said
    return told | {
        "identifier": plan.identifier,
        "wheel": wheel,
        "planned": plan.wheel,  # which has the newest platform tag that there can be
        "sha256": entries["pack"].made,
        "package": plan.build.package,
        "version": plan.version,
        "tag": plan.release.tag,
        "commit": source.commit,
        "commit_verified": source.verified,
        "source": source.origin,
        "options": _asked(job.options),
        "submodules": dict(source.submodules),
        "torch": plan.torch,
        "toolkit": plan.toolkit,
        "toolkit_completed": job.host.completed.get(plan.toolkit or ""),
        "libraries": dict(plan.libraries),
        "switches": dict(plan.set),
        "patches": list(plan.patches),
        "tools": dict(job.tools),
        "seconds": seconds,
        "key": ledger.digest([entry.parts for entry in entries.values()]),
        "stages": ledger.plain(entries),
    }


def _asked(options: Options) -> dict[str, Any]:
    """Return the options that a user gave and that can change the wheel; of a wheel only its name."""
    said = {one.name: getattr(options, one.name) for one in fields(options) if one.name not in _IRRELEVANT}
    usual = Options()
    found = {name: value for name, value in said.items() if value != getattr(usual, name)}
    if "torch" in found:
        found["torch"] = Path(found["torch"]).name
    return found
