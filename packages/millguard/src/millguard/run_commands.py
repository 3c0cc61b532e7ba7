"""The commands about earlier runs: `millguard report`, `explain` and `costs`."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from millguard import cost_files, places, recorded_runs, reports
from millguard.cost_files import CostFileError
from millguard.quantities import format_bytes, format_clock, printable
from millguard.replay import ReplayedBuild, allowed_memory, finished_units, replay
from millguard.usage import UsageError, WordParser, parse_jobs

FAILED = 1
_DEFAULT_JOBS = (1, 2, 4, 8, 16)  # compared if the user gives no --jobs


def run(name: str, words: Sequence[str]) -> int:
    """Run one of these commands; return its exit code, 1 after a message about a failure.

    Raises UsageError, and BrokenPipeError if nobody reads the output any more.
    """
    commands = {"report": _report, "explain": _explain, "costs": _costs}
    try:
        commands[name](words)
    except (recorded_runs.NoRunError, CostFileError) as error:
        sys.stderr.write(f"millguard: {printable(str(error))}\n")
        return FAILED
    except BrokenPipeError:  # no failure: `main` ends quietly if the reader has seen enough
        raise
    except OSError as error:
        sys.stderr.write(f"millguard: {error.filename or name}: {error.strerror or error}\n")
        return FAILED
    return 0


def _report(words: Sequence[str]) -> None:
    """Print the report on the latest run, or write it to a file."""
    parser = WordParser("report")
    parser.add_argument("file", nargs="?", type=Path, help="ends with .txt, .html or .svg")
    options = parser.parse_args(words)
    if options.file is not None:
        reports.check_target(options.file)
    latest = recorded_runs.load_latest(places.cache_folder(os.environ))
    if options.file is None:
        sys.stdout.write(reports.render_text(latest))
    else:
        reports.write_report(latest, options.file)


def _explain(words: Sequence[str]) -> None:
    """Print the memory and time that the latest run would have taken with fixed numbers of jobs."""
    parser = WordParser("explain")
    parser.add_argument("-j", "--jobs", help="a number of jobs (default: some are compared)")
    options = parser.parse_args(words)
    latest = recorded_runs.load_latest(places.cache_folder(os.environ))
    units = finished_units(latest.records)
    if not units:
        raise recorded_runs.NoRunError(f"`{latest.record.title}` compiled nothing under the guard")
    if options.jobs is None:
        counts = sorted({*_DEFAULT_JOBS, latest.record.cores})
    else:
        counts = [parse_jobs(options.jobs)]
    for line in reports.headlines(latest):
        print(printable(line))
    print("\nBy replay of the recorded compiles, in their order, without the guard:")
    allowed = allowed_memory(latest.records)
    for jobs in counts:
        print("  " + describe_replay(replay(units, jobs, latest.record.cores), allowed))


def describe_replay(build: ReplayedBuild, allowed: int) -> str:
    """Return a line on a replayed build.

    `allowed` is the bytes that all compiles could have together, 0 if the recording has no such
    figure.
    """
    line = (
        f"-j{build.jobs:<3} {format_clock(build.seconds):>8}  about {format_bytes(build.peak)}, "
        f"{format_bytes(build.at_most)} if all peaks meet"
    )
    if not allowed:
        return line
    if build.peak > allowed:
        verdict = f"more than the {format_bytes(allowed)} that there were: out of memory"
    elif build.at_most > allowed:
        verdict = f"within {format_bytes(allowed)} with luck"
    else:
        verdict = f"within {format_bytes(allowed)}"
    return f"{line}: {verdict}"


def _costs(words: Sequence[str]) -> None:
    """List the measured costs of units, write them to a file, or add those in a file."""
    parser = WordParser("costs")
    parser.add_argument("action", choices=("list", "export", "import"))
    parser.add_argument("file", nargs="?", type=Path)
    options = parser.parse_args(words)
    if (options.file is None) != (options.action == "list"):
        needs = "takes no file" if options.action == "list" else "needs a file"
        raise UsageError(f"millguard costs {options.action} {needs}")
    history = places.cache_folder(os.environ) / places.HISTORY
    if options.action == "list":
        for key, need in cost_files.read_history(history):
            print(f"{format_bytes(need.peak):>10} {need.seconds:>8.1f} s  {printable(key)}")
    elif options.action == "export":
        count = cost_files.export_costs(history, options.file)
        print(f"{count} costs were written to {printable(str(options.file))}")
    else:
        count = cost_files.import_costs(options.file, history)
        print(f"{count} costs were added from {printable(str(options.file))}")
