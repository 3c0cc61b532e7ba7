"""`invoke report`: draw what a build did with memory and time."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from torchmill.commands.command import TaskCommand
from torchmill.commands.report import trace
from torchmill.commands.report.recording import Recording, read_timeline, summarize_recording
from torchmill.config.model import Facts
from torchmill.core.errors import ConfigError, HostError
from torchmill.core.paths import Layout
from torchmill.toolchain.guard.timeline import SUFFIX


def find_timeline(name: str, layout: Layout) -> tuple[Path, tuple[str, ...]]:
    """Return the timeline that `name` stands for, and what must be said of it; "" stands for the newest.

    A name is a path, or that of a wheel in dist/ or of a log. Raises ConfigError where there is none.
    """
    if not name:
        return _newest(layout), ()
    logs = (layout.logs / f"{name}{end}" for end in ("", SUFFIX, ".log"))
    places = (Path(name), layout.dist / name, *logs)
    named = next((place for place in places if place.is_file()), None)
    if named is None:
        what = "is a folder" if Path(name).is_dir() else "is not there"
        raise ConfigError(f"{name} {what}: name a wheel, a build's log or its timeline; {_known(layout)}")
    if named.suffix == ".whl":
        return _of_wheel(named)
    if named.name.endswith(".whl.json"):
        return _of_wheel(named.with_suffix(""))
    return (_of_log(named) if named.suffix == ".log" else named), ()


def _timelines(layout: Layout) -> list[Path]:
    """Return all timelines of this checkout, newest first."""
    return sorted(layout.logs.glob(f"*{SUFFIX}"), key=lambda path: -path.stat().st_mtime)


def _newest(layout: Layout) -> Path:
    if found := _timelines(layout):
        return found[0]
    raise ConfigError(f"{layout.logs} holds no timeline yet: a build with the memory guard leaves one there")


def _known(layout: Layout) -> str:
    names = [path.name.removesuffix(SUFFIX) for path in _timelines(layout)[:4]]
    return f"there is {', '.join(names)}" if names else "no build has left one yet"


def _of_log(log: Path) -> Path:
    timeline = log.with_suffix(SUFFIX)
    if not timeline.is_file():
        raise ConfigError(
            f"{log} has no {timeline.name} beside it: that build ran without the memory guard; "
            "a build with the guard leaves one"
        )
    return timeline


def _of_wheel(wheel: Path) -> tuple[Path, tuple[str, ...]]:
    """Return the timeline that a wheel's manifest names, and what must be said of it.

    Raises ConfigError where there is none.
    """
    manifest = wheel.with_name(f"{wheel.name}.json")
    try:
        record = json.loads(manifest.read_text(encoding="utf-8"))
        named = (record.get("guard") or {}).get("timeline")
    except FileNotFoundError:
        raise ConfigError(
            f"{wheel} has no manifest beside it ({manifest.name}): only what was built here has a timeline"
        ) from None
    except (OSError, ValueError, AttributeError) as error:
        raise ConfigError(f"{manifest} is no manifest of a wheel ({error}): build the wheel again") from None
    if not isinstance(named, str) or not named:
        raise ConfigError(
            f"{wheel.name} was built without the memory guard, so no timeline was kept: "
            "a build with the guard keeps one"
        )
    timeline = manifest.parent / named
    if not timeline.is_file():
        raise ConfigError(
            f"the timeline of {wheel.name} is gone: its manifest names {timeline}; build the wheel again"
        )
    if timeline.stat().st_mtime > manifest.stat().st_mtime:
        return timeline, (f"{timeline.name} was written after {wheel.name}: a later build's, it seems",)
    return timeline, ()


def write_report(build: str, layout: Layout, folder: Path) -> str:
    """Write the picture and the trace of a build to `folder`, and return what there is to say.

    Raises ConfigError where there is no timeline, HostError where it cannot be drawn or written.
    """
    path, notes = find_timeline(build, layout)
    recording = read_timeline(path)
    recording = replace(recording, notes=(*notes, *recording.notes))
    drawing, tracing = folder / f"{recording.name}.png", folder / f"{recording.name}.trace.json"
    _written(trace.write_trace, recording, tracing)
    _written(_draw, recording, drawing)
    return "\n".join(
        [
            summarize_recording(recording),
            "",
            f"picture: {drawing}",
            f"trace:   {tracing} (open it in ui.perfetto.dev)",
        ]
    )


def _draw(recording: Recording, path: Path) -> None:
    try:
        from torchmill.commands.report import picture
    except ModuleNotFoundError as error:
        raise HostError(
            f"{error.name} is not installed, and the picture needs it: "
            "`python -m pip install -r requirements.txt`"
        ) from None
    picture.write_picture(recording, path)


def _written(write: Callable[[Recording, Path], None], recording: Recording, path: Path) -> None:
    """Write a file so that it appears whole."""
    fresh = path.with_name(f".{path.name}.new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write(recording, fresh)
        fresh.replace(path)
    except OSError as error:
        raise HostError(
            f"{path} cannot be written ({error.strerror or error}): name another folder with --out"
        ) from None
    finally:
        with contextlib.suppress(OSError):  # most often there is nothing to remove
            fresh.unlink()


def draw_build(_: Facts, layout: Layout, build: str | None = None, out: str = "") -> str:
    """Draw what a build did with memory and time: a picture, a trace for Perfetto, and words."""
    return write_report(build or "", layout, Path(out))


REPORT = TaskCommand(
    draw_build,
    {
        "build": "a wheel, a build's log or a timeline; default: the newest timeline",
        "out": "the folder to write to; default: this one",
    },
    argument="build",
    short_flags=False,
)
