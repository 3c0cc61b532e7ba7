"""`invoke report`: show the memory, the time and the wheel of a build."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from millguard.timeline import SUFFIX

from torchmill.commands.diagnose import log_diagnoser
from torchmill.commands.report.failure import diagnose_session
from torchmill.commands.report.recording import format_trace, read_timeline, summarize_recording
from torchmill.commands.watch import list_timelines
from torchmill.config.facts import Facts
from torchmill.core.atomic_writes import write_atomically
from torchmill.core.errors import ConfigError
from torchmill.core.optional_libraries import require_library
from torchmill.core.paths import Layout
from torchmill.core.strict_json import read_json_object
from torchmill.core.system_errors import report_unwritable
from torchmill.wheel.dist_files import read_manifest

_MOST_NAMES = 4  # of builds that a message lists


def draw_build(facts: Facts, layout: Layout, build: str | None = None, out: str = "") -> str:
    """Write a page, a picture and a trace of a build into the folder `out`; return a summary.

    By default this is the working folder. `build` is a name that `find_timeline` takes. The page of
    a build that left no wheel says why it failed, as its log tells. Raises ConfigError if there is
    no timeline of it.
    """
    name = build or ""
    path, notes = find_timeline(name, layout)
    recording = read_timeline(path)
    recording = replace(recording, notes=(*notes, *recording.notes))
    # Here, because matplotlib takes a second to load: errors come before that.
    with require_library("matplotlib"):
        from matplotlib.figure import Figure  # noqa: F401
    from torchmill.commands.report.picture import render_page, render_picture

    wheel = find_wheel(name, path, layout)
    failure = None
    if wheel is None:
        log = path.with_name(f"{path.name.removesuffix(SUFFIX)}.log")
        failure = diagnose_session(log, log_diagnoser(facts))
    page = Path(out, f"{recording.name}.html")
    picture = Path(out, f"{recording.name}.png")
    trace = Path(out, f"{recording.name}.trace.json")
    contents: dict[Path, str | bytes] = {
        trace: format_trace(recording),
        picture: render_picture(recording),
        page: render_page(recording, wheel, failure),
    }
    for file, content in contents.items():
        with report_unwritable(file):
            write_atomically(file, content)
    reason = (
        f"failed:  line {failure.line} of {failure.log}; the page says why\n" if failure else ""
    )
    return (
        f"{summarize_recording(recording)}\n\n"
        f"{reason}"
        f"page:    {page}\n"
        f"picture: {picture}\n"
        f"trace:   {trace} (open it in ui.perfetto.dev)"
    )


def find_timeline(name: str, layout: Layout) -> tuple[Path, tuple[str, ...]]:
    """Return the timeline that a name stands for, and notes on it; "" stands for the newest.

    A name is a path, or the name of a wheel in dist/, of a log or of a build: "wheel-3.10-cpu"
    stands for the newest of any release, "wheel-3.10-cpu-aarch64" for one in a container. Raises
    ConfigError if there is none.
    """
    timelines = sorted(list_timelines(layout), key=lambda path: -path.stat().st_mtime)
    if not name and timelines:
        return timelines[0], ()
    file = _find_file(name, timelines, layout)
    if file is None:
        recorded = [_build_name(path, layout) for path in timelines[:_MOST_NAMES]]
        listed = ", ".join(recorded) or "none yet, a guarded build leaves one"
        raise ConfigError(
            f"{name or layout.logs}: no timeline of a build: name a build, a wheel, a log or its "
            f"timeline; recorded in {layout.logs}: {listed}",
            code="no-timeline",
        )
    if file.name.endswith((".whl", ".whl.json")):
        manifest = file.with_name(f"{file.name.removesuffix('.json')}.json")
        return _timeline_of_wheel(manifest)
    timeline = file.with_suffix(SUFFIX) if file.suffix == ".log" else file
    if not timeline.is_file():
        raise _unguarded_build(file)
    return timeline, ()


def _find_file(name: str, timelines: Sequence[Path], layout: Layout) -> Path | None:
    """Return the file that a name stands for: a wheel, its manifest, a log or a timeline.

    `timelines` are those that a build's name is looked for in, the newest first.
    """
    if not name:
        return None
    candidates = [Path(name), layout.dist / name, layout.logs / name]
    # "wheel-3.10-cpu" is the end of "v1.13.1-wheel-3.10-cpu", and of "v2.4.1-wheel-3.10-cpu".
    ending = f"-{name.removesuffix(SUFFIX)}"
    candidates += [
        timeline for timeline in timelines if f"-{_build_name(timeline, layout)}".endswith(ending)
    ]
    return next((path for path in candidates if path.is_file()), None)


def _build_name(timeline: Path, layout: Layout) -> str:
    """Return "v1.13.1-wheel-3.10-cpu"; the architecture follows for a build in a container."""
    name = timeline.name.removesuffix(SUFFIX)
    if timeline.parent == layout.logs:
        return name
    return f"{name}-{timeline.parent.parent.name}"


def _unguarded_build(file: Path) -> ConfigError:
    """Return the error for the log or the wheel of a build without the memory guard."""
    return ConfigError(
        f"{file} was built without the memory guard, so it has no timeline: a build with the guard "
        "has one",
        code="built-without-guard",
    )


def _timeline_of_wheel(manifest: Path) -> tuple[Path, tuple[str, ...]]:
    """Return the timeline that a wheel's manifest names, and notes on it."""
    try:
        record = read_json_object(manifest)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{manifest} is not the manifest of a wheel that was built here ({error}): build the "
            "wheel again",
            code="no-manifest",
        ) from None
    timeline = _named_timeline(record, manifest.parent)
    if timeline is None:
        raise _unguarded_build(manifest.with_suffix(""))
    if not timeline.is_file():
        raise ConfigError(
            f"the timeline of {manifest.stem} is gone: its manifest names {timeline}; build the "
            "wheel again",
            code="no-timeline",
        )
    if timeline.stat().st_mtime > manifest.stat().st_mtime:
        note = f"{timeline.name} was written after {manifest.stem}: a later build's, it seems"
        return timeline, (note,)
    return timeline, ()


def _named_timeline(manifest: Mapping[str, Any], folder: Path) -> Path | None:
    """Return the timeline that the manifest of a wheel in a folder names, if it names one."""
    guard = manifest.get("guard")
    name = guard.get("timeline") if isinstance(guard, dict) else None
    return folder / name if isinstance(name, str) and name else None


def find_wheel(name: str, timeline: Path, layout: Layout) -> Path | None:
    """Return the wheel whose manifest names a timeline, None if there is none.

    It is the one that `name` stands for, itself or by its manifest, or one in dist/.
    """
    wheels = sorted(layout.dist.glob("*.whl"))
    if name:
        file_name = name.removesuffix(".json")
        wheels = [Path(file_name), layout.dist / file_name, *wheels]
    for wheel in wheels:
        path = _named_timeline(read_manifest(wheel), wheel.parent)
        if path is not None and path.resolve() == timeline.resolve():
            return wheel
    return None
