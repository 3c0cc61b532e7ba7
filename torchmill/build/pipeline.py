"""The main job: one cell from its plan to the verified wheel in dist/."""

from pathlib import Path

from torchmill.build import steps, up_to_date
from torchmill.build.context import BuildContext, preflight, with_measured_host
from torchmill.build.progress_line import ProgressLine
from torchmill.build.up_to_date import StageRecord
from torchmill.config.model import Artifact
from torchmill.core import locks
from torchmill.fetch.download import report_disk_full
from torchmill.host import environments
from torchmill.host.environments import Install
from torchmill.wheel import dist_files
from torchmill.wheel.verify import device_code


def build_wheel(job: BuildContext, install: Install, line: ProgressLine) -> Artifact:
    """Make the wheel of one cell, verified, in dist/; what holds of an earlier build is not made again.

    `install` puts requirements into the session's environment. Raises SuiteError.
    """
    job = with_measured_host(job)
    preflight(job, line.note)
    standing = up_to_date.find_stage_state(job)
    if standing.known:
        line.note(f"not as it was when {job.wheel.name} was made: {standing.why or 'the wheel'}")
    with (
        locks.hold_lock(job.outputs.folder, job.plan.identifier),
        environments.hold_environment(job.venv, job.plan.identifier),
        report_disk_full(job.outputs.folder),
    ):
        try:
            return _Work(job, install, line).deliver()
        finally:
            job.recall.save()


class _Work:
    """What is done for one cell: each step asks the one before it for its file, and only if it must."""

    def __init__(self, job: BuildContext, install: Install, line: ProgressLine) -> None:
        self.job, self.install, self.line = job, install, line
        self.before = dist_files.read_manifest(job.wheel)
        standing = up_to_date.find_stage_state(job)  # anew: another run may have ended meanwhile
        self.known = dict(standing.known)
        self.entries = dict(standing.held)

    def deliver(self) -> Artifact:
        """Put the verified wheel into dist/, with its manifest, its statement and its SBOM."""
        packed = self.packed()
        wheel = self.job.layout.dist / packed.name
        if not self.holds("verify"):
            if packed == wheel:  # what lies in dist/ has passed every check that there is
                packed = self.job.outputs.packed / packed.name
                dist_files.withdraw_wheel(wheel, packed)
            self.line.note(f"verifying {packed.name} in a clean environment")
            entry = steps.verify_stage(self.job, packed, self.entries)
            self.keep("verify", entry)
            for sentence in entry.said["unlike"]:
                self.line.note(sentence)
            if code := device_code.format_device_code(entry.said["device_code"]):
                self.line.note(f"code for GPUs: {code}")
        record = steps.compose_manifest(self.job, self.entries, self.before, wheel.name)
        documents = dist_files.compose_documents(record, packed)
        return dist_files.publish_wheel(packed, wheel, record, self.job.wheel, documents)

    def packed(self) -> Path:
        """Return the packed wheel, made anew unless there is one of what was compiled."""
        there = self.found("pack")
        if there is None:
            raw = self.raw()
            there = self.found("pack")  # what was compiled again may be the same as before
        if there is None:
            there, entry = steps.pack_stage(self.job, raw, self.entries)
            self.keep("pack", entry)
        return there

    def raw(self) -> Path:
        """Return the raw wheel, compiled unless it is there."""
        there = self.found("compile")
        if there is None:
            there, entry = steps.compile_stage(self.job, self.install, self.line)
            self.keep("compile", entry)
        return there

    def found(self, stage: str) -> Path | None:
        """Return the file that a stage made and would make again; None where it must make one."""
        return steps.locate_product(self.job, stage, self.entries[stage].made) if self.holds(stage) else None

    def holds(self, stage: str) -> bool:
        """Tell whether a stage, in view of those before it, would make the same again."""
        if stage not in self.entries:
            entry = self.known.get(stage)
            held = all(one in self.entries for one in up_to_date.STAGES[: up_to_date.STAGES.index(stage)])
            if entry and held and not up_to_date.find_changes(self.job, stage, entry, self.entries):
                self.entries[stage] = entry
        return stage in self.entries

    def keep(self, stage: str, entry: StageRecord) -> None:
        """Write down what a stage made; whether those after it still hold is open again."""
        before = up_to_date.STAGES[: up_to_date.STAGES.index(stage)]
        self.entries = {one: self.entries[one] for one in before} | {stage: entry}
        self.known |= self.entries
        up_to_date.write_records(self.job.outputs.ledger, self.known)
