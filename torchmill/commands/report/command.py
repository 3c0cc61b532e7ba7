"""`invoke report`: show what a build did with memory and time, and what it made."""

from dataclasses import replace
from pathlib import Path

from millguard.timeline import SUFFIX

from torchmill.commands.report.recording import format_trace, read_timeline, summarize_recording
from torchmill.core.atomic_writes import write_atomically
from torchmill.core.errors import ConfigError
from torchmill.core.paths import Layout
from torchmill.core.strict_json import read_json_object
from torchmill.core.system_errors import report_unwritable
from torchmill.wheel.dist_files import read_manifest


def find_timeline(name: str, layout: Layout) -> tuple[Path, tuple[str, ...]]:
    """Return the timeline that `name` stands for, and notes on it; "" stands for the newest.

    A name is a path, or that of a wheel in dist/, of a log or of a build: "wheel-3.10-cpu" stands for the newest of
    any release, "wheel-3.10-cpu-aarch64" for one in a container. Raises ConfigError if there is none.
    """
    inside = layout.state.glob(f"*/logs/*{SUFFIX}")  # of containers, by their arch
    timelines = sorted(
        (*layout.logs.glob(f"*{SUFFIX}"), *inside), key=lambda path: -path.stat().st_mtime
    )
    if not name and timelines:
        return timelines[0], ()
    names = {path: _build_name(path, layout) for path in timelines}
    asked = name.removesuffix(SUFFIX)
    of_build = (path for path in timelines if f"-{names[path]}".endswith(f"-{asked}"))
    places = (Path(name), layout.dist / name, layout.logs / name, *of_build)
    named = next((place for place in places if name and place.is_file()), None)
    if named is None:
        raise ConfigError(
            f"{name or layout.logs}: no timeline of a build: name a build, a wheel, a log or its timeline; "
            f"recorded in {layout.logs}: {', '.join([*names.values()][:4]) or 'none yet, a guarded build leaves one'}",
            code="no-timeline",
        )
    if named.name.endswith((".whl", ".whl.json")):
        return _timeline_of_wheel(named.with_name(f"{named.name.removesuffix('.json')}.json"))
    timeline = named.with_suffix(SUFFIX) if named.suffix == ".log" else named
    if not timeline.is_file():
        raise _unguarded(named)
    return timeline, ()


def _build_name(timeline: Path, layout: Layout) -> str:
    """Return "v1.13.1-wheel-3.10-cpu", with the arch of its container where it was built in one."""
    arch = "" if timeline.parent == layout.logs else f"-{timeline.parent.parent.name}"
    return f"{timeline.name.removesuffix(SUFFIX)}{arch}"


def _unguarded(built: Path) -> ConfigError:
    return ConfigError(
        f"{built} was built without the memory guard, so it has no timeline: a build with the guard has one",
        code="built-without-guard",
    )


def _timeline_of_wheel(manifest: Path) -> tuple[Path, tuple[str, ...]]:
    """Return the timeline that a wheel's manifest names, and notes on it."""
    try:
        guard = read_json_object(manifest).get("guard")
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{manifest} is not the manifest of a wheel that was built here ({error}): build the wheel again",
            code="no-manifest",
        ) from None
    named = guard.get("timeline") if isinstance(guard, dict) else None
    if not isinstance(named, str) or not named:
        raise _unguarded(manifest.with_suffix(""))
    timeline = manifest.parent / named
    if not timeline.is_file():
        raise ConfigError(
            f"the timeline of {manifest.stem} is gone: its manifest names {timeline}; build the wheel again",
            code="no-timeline",
        )
    if timeline.stat().st_mtime > manifest.stat().st_mtime:
        return timeline, (
            f"{timeline.name} was written after {manifest.stem}: a later build's, it seems",
        )
    return timeline, ()


def find_wheel(name: str, timeline: Path, layout: Layout) -> Path | None:
    """Return the wheel of a timeline: what `name` stands for, or one in dist/; None where there is none."""
    places = [Path(name), layout.dist / name] if name else []
    for wheel in (*places, *sorted(layout.dist.glob("*.whl"))):
        guard = read_manifest(wheel).get("guard")
        named = guard.get("timeline") if isinstance(guard, dict) else None
        if isinstance(named, str) and (wheel.parent / named).resolve() == timeline.resolve():
            return wheel
    return None


def draw_build(layout: Layout, build: str | None = None, out: str = "") -> str:
    """Show how a build used memory and time, as a page or a picture."""
    path, notes = find_timeline(build or "", layout)
    recording = read_timeline(path)
    recording = replace(recording, notes=(*notes, *recording.notes))
    page, drawing, tracing = (
        Path(out, f"{recording.name}{suffix}") for suffix in (".html", ".png", ".trace.json")
    )
    from torchmill.commands.report.picture import render_page, render_picture

    whole = render_page(recording, find_wheel(build or "", path, layout))
    for file, content in (
        (tracing, format_trace(recording)),
        (drawing, render_picture(recording)),
        (page, whole),
    ):
        with report_unwritable(file):
            write_atomically(file, content)
    made = f"page:    {page}\npicture: {drawing}\ntrace:   {tracing} (open it in ui.perfetto.dev)"
    return f"{summarize_recording(recording)}\n\n{made}"
