"""Recordings of builds that were made up."""

from collections.abc import Iterable
from pathlib import Path

from guard_support.recorded import small, write
from millguard.timeline import Record

from torchmill.commands.report.recording import Recording, read_timeline


def recording(folder: Path, records: Iterable[Record] | None = None) -> Recording:
    """Return records read back from a timeline."""
    return read_timeline(
        write(folder / "wheel-3.10-cpu.timeline.jsonl", small() if records is None else records)
    )
