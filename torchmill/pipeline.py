"""The stages of one wheel, each done only where what it made before will not do: compile, pack, verify."""

from pathlib import Path

from torchmill import artifact, environments, ledger, locks, making, manifest, stages
from torchmill.buildline import Line
from torchmill.deliver import provenance
from torchmill.environments import Install
from torchmill.ledger import Entry
from torchmill.model import Artifact
from torchmill.source.disk import disk_full_told
from torchmill.verify import devicecode
from torchmill.workshop import Job, equipped, preflight


def make(job: Job, install: Install, line: Line) -> Artifact:
    """Make the wheel of one cell, verified, in dist/; what holds of an earlier build is not made again.

    `install` puts requirements into the session's environment. Raises SuiteError.
    """
    job = equipped(job)
    preflight(job, line.note)
    standing = stages.standing(job)
    if standing.known:
        line.note(f"not as it was when {job.wheel.name} was made: {standing.why or 'the wheel'}")
    with (
        locks.locked(job.outputs.folder, job.plan.identifier),
        environments.held(job.venv, job.plan.identifier),
        disk_full_told(job.outputs.folder),
    ):
        try:
            return _Work(job, install, line).deliver()
        finally:
            job.recall.save()


class _Work:
    """What is done for one cell: each step asks the one before it for its file, and only if it must."""

    def __init__(self, job: Job, install: Install, line: Line) -> None:
        self.job, self.install, self.line = job, install, line
        self.before = artifact.record(job.wheel)
        standing = stages.standing(job)  # anew: another run may have ended meanwhile
        self.known = dict(standing.known)
        self.entries = dict(standing.held)

    def deliver(self) -> Artifact:
        """Put the verified wheel into dist/, with its manifest, its statement and its SBOM."""
        packed = self.packed()
        wheel = self.job.layout.dist / packed.name
        if not self.holds("verify"):
            if packed == wheel:  # what lies in dist/ has passed every check that there is
                packed = self.job.outputs.packed / packed.name
                artifact.withdraw(wheel, packed)
            self.line.note(f"verifying {packed.name} in a clean environment")
            entry = making.verified(self.job, packed, self.entries)
            self.keep("verify", entry)
            for sentence in entry.said["unlike"]:
                self.line.note(sentence)
            if code := devicecode.told(entry.said["device_code"]):
                self.line.note(f"code for GPUs: {code}")
        record = manifest.compose(self.job, self.entries, self.before, wheel.name)
        documents = provenance.documents(record, packed)
        return artifact.publish(packed, wheel, record, self.job.wheel, documents)

    def packed(self) -> Path:
        """Return the packed wheel, made anew unless there is one of what was compiled."""
        there = self.found("pack")
        if there is None:
            raw = self.raw()
            there = self.found("pack")  # what was compiled again may be the same as before
        if there is None:
            there, entry = making.packed(self.job, raw, self.entries)
            self.keep("pack", entry)
        return there

    def raw(self) -> Path:
        """Return the raw wheel, compiled unless it is there."""
        there = self.found("compile")
        if there is None:
            there, entry = making.compiled(self.job, self.install, self.line)
            self.keep("compile", entry)
        return there

    def found(self, stage: str) -> Path | None:
        """Return the file that a stage made and would make again; None where it must make one."""
        return making.located(self.job, stage, self.entries[stage].made) if self.holds(stage) else None

    def holds(self, stage: str) -> bool:
        """Tell whether a stage, in view of those before it, would make the same again."""
        if stage not in self.entries:
            entry = self.known.get(stage)
            held = all(one in self.entries for one in ledger.STAGES[: ledger.STAGES.index(stage)])
            if entry and held and not stages.changes(self.job, stage, entry, self.entries):
                self.entries[stage] = entry
        return stage in self.entries

    def keep(self, stage: str, entry: Entry) -> None:
        """Write down what a stage made; whether those after it still hold is open again."""
        before = ledger.STAGES[: ledger.STAGES.index(stage)]
        self.entries = {one: self.entries[one] for one in before} | {stage: entry}
        self.known |= self.entries
        ledger.write(self.job.outputs.ledger, self.known)
