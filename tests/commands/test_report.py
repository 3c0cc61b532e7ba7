"""`invoke report`, as a user runs it; which timeline a name stands for."""

import json
import os
import sys
from pathlib import Path

import pytest
from guard_support.recorded import small, write

from tests.support.commands import run
from tests.support.refusals import refused
from torchmill.commands import report
from torchmill.commands.report.command import draw_build, find_timeline, find_wheel
from torchmill.config import facts_reader
from torchmill.core.errors import HostError
from torchmill.core.exits import as_torchmill_error
from torchmill.core.paths import CHECKOUT, Layout

NAME = "v1.13.1-wheel-3.10-cpu"
WHEEL = "torch-1.13.1+cpu-cp310-cp310-linux_x86_64.whl"
FACTS = facts_reader.read_facts(CHECKOUT / "build_configs")


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    folders = Layout(tmp_path, tmp_path / "cache")
    folders.dist.mkdir()
    folders.logs.mkdir(parents=True)
    return folders


def built(layout: Layout, name: str = NAME) -> Path:
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
    for name in (timeline, log, timeline.name, log.name, NAME):
        assert find_timeline(str(name), layout) == (timeline, ())


def test_a_timeline_by_the_name_of_its_session(layout: Layout) -> None:
    old, new = built(layout, "v1.13.0-wheel-3.10-cpu"), built(layout)
    os.utime(old, (1, 1))
    contained = layout.state / "aarch64" / "logs" / new.name
    contained.parent.mkdir(parents=True)
    write(contained, small())
    assert find_timeline("wheel-3.10-cpu", layout) == (new, ())
    assert find_timeline("wheel-3.10-cpu-aarch64", layout) == (contained, ())
    assert find_timeline(old.name.removesuffix(".timeline.jsonl"), layout) == (old, ())
    with refused("no-timeline") as caught:
        find_timeline("3.10-cpu-x86_64", layout)
    assert "v1.13.1-wheel-3.10-cpu-aarch64" in str(caught.value)


def test_the_newest_timeline_without_a_name(layout: Layout) -> None:
    old, new = built(layout, "z"), built(layout, "a")
    os.utime(old, (1, 1))
    assert find_timeline("", layout) == (new, ())


def test_a_timeline_by_its_wheel(layout: Layout) -> None:
    timeline = built(layout)
    wheel = published(layout, {"timeline": os.path.relpath(timeline, layout.dist)})
    for name in (str(wheel), WHEEL, f"{wheel}.json"):
        path, notes = find_timeline(name, layout)
        assert path.samefile(timeline)
        assert notes == ()
    published(layout, {"timeline": str(timeline)})
    assert find_timeline(WHEEL, layout)[0] == timeline


def test_the_wheel_of_a_timeline_by_its_name_and_its_manifests(
    layout: Layout, tmp_path: Path
) -> None:
    timeline = built(layout)
    wheel = published(layout, {"timeline": str(timeline)})
    elsewhere = tmp_path / "elsewhere"
    layout.dist.rename(elsewhere)
    for name in (wheel.name, f"{wheel.name}.json"):
        assert find_wheel(str(elsewhere / name), timeline, layout) == elsewhere / WHEEL
    assert find_wheel(NAME, timeline, layout) is None


def test_a_timeline_that_is_younger_than_its_wheel_is_told(layout: Layout) -> None:
    timeline = built(layout)
    wheel = published(layout, {"timeline": str(timeline)})
    os.utime(f"{wheel}.json", (1, 1))
    assert find_timeline(WHEEL, layout)[1] == (
        f"v1.13.1-wheel-3.10-cpu.timeline.jsonl was written after {WHEEL}: a later build's, it seems",
    )


def test_wheels_without_a_timeline(layout: Layout) -> None:
    wheel = published(layout)
    for guard in (None, 7, {"peak": 1}):
        published(layout, guard)
        with refused("built-without-guard"):
            find_timeline(str(wheel), layout)
    published(layout, {"timeline": "../gone.timeline.jsonl"})
    with refused("no-timeline"):
        find_timeline(str(wheel), layout)
    manifest = wheel.with_name(f"{WHEEL}.json")
    for text in ("[]", "{"):
        manifest.write_text(text, encoding="utf-8")
        with refused("no-manifest"):
            find_timeline(str(wheel), layout)
    manifest.unlink()
    with refused("no-manifest"):
        find_timeline(str(wheel), layout)


def test_names_of_nothing(layout: Layout) -> None:
    for name in ("x.log", "", str(layout.dist)):
        with refused("no-timeline"):
            find_timeline(name, layout)
    built(layout).unlink()
    with refused("built-without-guard"):
        find_timeline(f"{NAME}.log", layout)


@pytest.fixture
def drawn(layout: Layout) -> Layout:
    built(layout)
    return layout


def test_the_task_draws_the_newest(drawn: Layout, tmp_path: Path) -> None:
    out = tmp_path / "a folder" / "and one in it"
    done = run("invoke", "report", "--out", str(out), home=drawn.root)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"{NAME}: 3 units in 0:20")
    assert done.stdout.rstrip().endswith("(open it in ui.perfetto.dev)")
    assert sorted(path.name for path in out.iterdir()) == [
        f"{NAME}.html",
        f"{NAME}.png",
        f"{NAME}.trace.json",
    ]
    assert (out / f"{NAME}.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads((out / f"{NAME}.trace.json").read_text(encoding="utf-8"))["traceEvents"]


def test_the_task_refuses_in_one_sentence(drawn: Layout) -> None:
    done = run("invoke", "report", "nonsense.whl", home=drawn.root)
    assert done.returncode == 2
    assert done.stderr == (
        "error[no-timeline]: nonsense.whl: no timeline of a build: name a build, a wheel, a log or its timeline; "
        f"recorded in {drawn.logs}: {NAME}\n"
    )


def test_a_place_that_cannot_be_written_leaves_nothing(drawn: Layout, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with refused("not-writable"):
        draw_build(FACTS, drawn, NAME, str(tmp_path / "file"))


@pytest.mark.parametrize("package", ["matplotlib", "jinja2"])
def test_without_a_library_the_cure_is_named(
    drawn: Layout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    for name in ("page", "picture"):
        monkeypatch.delitem(sys.modules, f"torchmill.commands.report.{name}", raising=False)
        monkeypatch.delattr(report, name, raising=False)
    with pytest.raises((ModuleNotFoundError, HostError)) as caught:
        draw_build(FACTS, drawn, NAME, str(tmp_path))
    error = as_torchmill_error(caught.value)
    assert (error.code, package in str(error)) == ("package-missing", True)
    assert not list(tmp_path.glob(".*.new"))
