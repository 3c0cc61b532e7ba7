"""What is told of a wheel beside it: everything worth knowing when its build is forgotten."""

from collections.abc import Mapping
from typing import Any

from torchwright import ledger
from torchwright.ledger import Entry
from torchwright.workshop import Job


def compose(job: Job, entries: Mapping[str, Entry], before: Mapping[str, Any]) -> dict[str, Any]:
    """Return the manifest of a wheel whose stages are done.

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
        "wheel": plan.wheel,
        "sha256": entries["pack"].made,
        "package": plan.build.package,
        "version": plan.version,
        "tag": plan.release.tag,
        "commit": source.commit,
        "commit_verified": source.verified,
        "source": source.origin,
        "submodules": dict(source.submodules),
        "torch": plan.torch,
        "toolkit": plan.toolkit,
        "libraries": dict(plan.libraries),
        "switches": dict(plan.set),
        "patches": list(plan.patches),
        "tools": dict(job.tools),
        "seconds": seconds,
        "key": ledger.digest([entry.parts for entry in entries.values()]),
        "stages": ledger.plain(entries),
    }
