"""What a build did with memory and time, from its guard's timeline: a picture, a trace, and words."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from torchmill.errors import HostError
from torchmill.layout import Layout
from torchmill.report import text, trace, whereabouts
from torchmill.report.recording import Recording, read

HELP = {
    "build": "a wheel, a build's log or a timeline; default: the newest timeline",
    "out": "the folder to write to; default: this one",
}


def make(build: str, layout: Layout, folder: Path) -> str:
    """Write the picture and the trace of a build to `folder`, and return what there is to say.

    Raises ConfigError where there is no timeline, HostError where it cannot be drawn or written.
    """
    path, notes = whereabouts.find(build, layout)
    recording = read(path)
    recording = replace(recording, notes=(*notes, *recording.notes))
    drawing, tracing = folder / f"{recording.name}.png", folder / f"{recording.name}.trace.json"
    _written(trace.write, recording, tracing)
    _written(_draw, recording, drawing)
    return "\n".join(
        [
            text.summary(recording),
            "",
            f"picture: {drawing}",
            f"trace:   {tracing} (open it in ui.perfetto.dev)",
        ]
    )


def _draw(recording: Recording, path: Path) -> None:
    try:
        from torchmill.report import picture  # noqa: PLC0415 (matplotlib takes its time to load)
    except ModuleNotFoundError as error:
        raise HostError(
            f"{error.name} is not installed, and the picture needs it: "
            "`python -m pip install -r requirements.txt`"
        ) from None
    picture.write(recording, path)


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
