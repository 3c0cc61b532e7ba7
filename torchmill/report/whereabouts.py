"""Which timeline is meant: by a wheel, by a build's log, by itself, or the newest of all."""

from __future__ import annotations

import json
from pathlib import Path

from torchmill.errors import ConfigError
from torchmill.guard.timeline import SUFFIX
from torchmill.layout import Layout


def find(name: str, layout: Layout) -> tuple[Path, tuple[str, ...]]:
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
