"""Which timeline a name stands for."""

import json
import os
from pathlib import Path

import pytest

from tests.support.recorded import small, write
from torchmill.commands.report.command import find_timeline
from torchmill.core.errors import ConfigError
from torchmill.core.paths import Layout

WHEEL = "torch-1.13.1+cpu-cp310-cp310-linux_x86_64.whl"


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    found = Layout(tmp_path, tmp_path / "cache")
    found.dist.mkdir()
    found.logs.mkdir(parents=True)
    return found


def built(layout: Layout, name: str = "v1.13.1-wheel-3.10-cpu") -> Path:
    (layout.logs / f"{name}.log").write_text("[1/1] Linking x\n", encoding="utf-8")
    return write(layout.logs / f"{name}.timeline.jsonl", small())


def published(layout: Layout, guard: object = None) -> Path:
    wheel = layout.dist / WHEEL
    wheel.write_bytes(b"PK")
    wheel.with_name(f"{WHEEL}.json").write_text(
        json.dumps({"wheel": WHEEL, "guard": guard}), encoding="utf-8"
    )
    return wheel


def test_a_timeline_by_its_log_by_itself_and_by_the_build(layout: Layout) -> None:
    timeline = built(layout)
    log = timeline.with_name("v1.13.1-wheel-3.10-cpu.log")
    for name in (timeline, log, timeline.name, log.name, "v1.13.1-wheel-3.10-cpu"):
        assert find_timeline(str(name), layout) == (timeline, ())


def test_the_newest_timeline_without_a_name(layout: Layout) -> None:
    old, new = built(layout, "z"), built(layout, "a")
    os.utime(old, (1, 1))
    assert find_timeline("", layout) == (new, ())


def test_a_timeline_by_its_wheel(layout: Layout) -> None:
    timeline = built(layout)
    wheel = published(layout, {"timeline": os.path.relpath(timeline, layout.dist)})
    for name in (str(wheel), WHEEL, f"{wheel}.json"):
        found, notes = find_timeline(name, layout)
        assert found.samefile(timeline)
        assert notes == ()
    published(layout, {"timeline": str(timeline)})
    assert find_timeline(WHEEL, layout)[0] == timeline


def test_a_timeline_that_is_younger_than_its_wheel_is_told(layout: Layout) -> None:
    timeline = built(layout)
    wheel = published(layout, {"timeline": str(timeline)})
    os.utime(f"{wheel}.json", (1, 1))
    assert find_timeline(WHEEL, layout)[1] == (
        f"v1.13.1-wheel-3.10-cpu.timeline.jsonl was written after {WHEEL}: a later build's, it seems",
    )


def refused(name: object, layout: Layout) -> str:
    with pytest.raises(ConfigError) as caught:
        find_timeline(str(name), layout)
    return str(caught.value)


def test_wheels_without_a_timeline(layout: Layout) -> None:
    wheel = published(layout)
    assert f"{WHEEL} was built without the memory guard" in refused(wheel, layout)
    published(layout, {"peak": 1})
    assert "was built without the memory guard" in refused(wheel, layout)
    published(layout, {"timeline": "../gone.timeline.jsonl"})
    assert "its manifest names" in refused(wheel, layout)
    manifest = wheel.with_name(f"{WHEEL}.json")
    manifest.write_text("[]", encoding="utf-8")
    assert "is no manifest of a wheel" in refused(wheel, layout)
    manifest.write_text('{"guard": 7}', encoding="utf-8")
    assert "is no manifest of a wheel" in refused(wheel, layout)
    manifest.write_text("{", encoding="utf-8")
    assert "is no manifest of a wheel" in refused(wheel, layout)
    manifest.unlink()
    assert f"has no manifest beside it ({WHEEL}.json)" in refused(wheel, layout)


def test_names_of_nothing(layout: Layout) -> None:
    assert "no build has left one yet" in refused("x.log", layout)
    assert "holds no timeline yet" in refused("", layout)
    built(layout)
    assert refused("nonsense", layout) == (
        "nonsense is not there: name a wheel, a build's log or its timeline; there is v1.13.1-wheel-3.10-cpu"
    )
    assert f"{layout.dist} is a folder: name a wheel" in refused(layout.dist, layout)


def test_a_log_without_a_timeline(layout: Layout) -> None:
    built(layout).unlink()
    said = refused("v1.13.1-wheel-3.10-cpu.log", layout)
    assert "has no v1.13.1-wheel-3.10-cpu.timeline.jsonl beside it" in said
