"""The page of `invoke report`: parsed strictly, and drawn by a real browser where there is one, light and dark."""

import json
import os
import shutil
import subprocess
from pathlib import Path
from xml.etree import ElementTree as ET
from zipfile import ZipFile

import matplotlib.image
import pytest
from guard_support.recorded import moment, ran, small
from guard_support.recorded import write as timeline
from millguard.timeline import Record

from tests.support.commands import run
from tests.support.recordings import recording
from torchmill.commands.report.failure import describe_failure
from torchmill.commands.report.picture import describe_wheel, render_page
from torchmill.config import facts_reader
from torchmill.core.paths import CHECKOUT, Layout
from torchmill.plan import causes
from torchmill.wheel.statement import describe_builder

FACTS = facts_reader.read_facts(CHECKOUT / "build_configs")
REFUSED = "nvcc fatal   : Unsupported gpu architecture 'compute_75'"
BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
HTML = "{http://www.w3.org/1999/xhtml}"
WHEEL = "torch-1.13.1+cpu-cp310-cp310-linux_x86_64.whl"
BROWSER_SECONDS = 300  # after which a browser that says nothing is taken to hang
RELEASE = {
    "package": "torch",
    "version": "1.13.1",
    "tag": "v1.13.1",
    "identifier": "wheel-3.10-cpu",
}
CACHE = {"tool": "ccache 4.7.5", "hits": 3, "misses": 1}


def page(
    folder: Path, records: list[Record] | None = None, wheel: Path | None = None
) -> ET.Element:
    """Write a page and return what is in it; raises ParseError for tags that are not closed."""
    (folder / "page.html").write_text(
        render_page(recording(folder, records or small()), wheel), encoding="utf-8"
    )
    return ET.parse(folder / "page.html").getroot()  # noqa: S314 - our own


def failed_page(folder: Path, *lines: str) -> ET.Element:
    """Write the page of a build that failed with some lines in its log."""
    diagnosis = causes.diagnose(FACTS.causes, lines, rules=FACTS)
    section = describe_failure(diagnosis, "build.log")
    (folder / "page.html").write_text(
        render_page(recording(folder, small()), None, section), encoding="utf-8"
    )
    return ET.parse(folder / "page.html").getroot()  # noqa: S314 - our own


def texts(root: ET.Element, tag: str) -> list[str]:
    return ["".join(element.itertext()) for element in root.iter(f"{HTML}{tag}")]


def made(folder: Path) -> Path:
    """Leave a wheel with a manifest that names its timeline."""
    layout = Layout(folder, folder / "cache")
    layout.dist.mkdir()
    layout.logs.mkdir(parents=True)
    timeline(layout.logs / "v1.13.1-wheel-3.10-cpu.timeline.jsonl", small())
    wheel = layout.dist / WHEEL
    with ZipFile(wheel, "w") as archive:
        archive.writestr("torch/lib/libtorch_cpu.so", b"x" * 5000)
        archive.writestr("torch/<&>.py", b"")
    guard = {"timeline": "../.torchmill/logs/v1.13.1-wheel-3.10-cpu.timeline.jsonl"}
    wheel.with_name(f"{WHEEL}.json").write_text(
        json.dumps({"guard": guard, "cache": CACHE, **RELEASE}), encoding="utf-8"
    )
    return wheel


def test_the_page_says_what_happened(tmp_path: Path) -> None:
    root = page(tmp_path)
    assert "3 units in 0:20, 1 failed, 1.3 at a time on average" in texts(root, "p")
    assert "memory: at most 3.9 of 4.0 GiB, at 0:04" in texts(root, "li")
    assert texts(root, "h2") == [
        "memory",
        "units and processors",
        "every compile and link",
        "the slowest units",
        "compiler cache",
    ]
    assert {"used", "allowed", "running", "paused", "waiting", "processors"} == {
        *texts(root, "span")[:2]
    } | {element for element in texts(root, "span") if element.isalpha()}
    assert texts(root, "p")[0].startswith("no wheel of this build is in dist/")
    pointed = [
        "".join(title.itertext()) for title in root.iter("{http://www.w3.org/2000/svg}title")
    ]
    assert "b.cpp: 9.0 s, 3.0 GiB, done" in pointed
    rows = [[cell.strip() for cell in texts(row, "td")] for row in root.iter(f"{HTML}tr")]
    assert ["", "0:09", "3.0 GiB", "b.cpp"] in rows
    assert ["", "0:02", "1.0 GiB", "lib.so (failed)"] in rows
    bars = [
        (element.get("x"), element.get("width"), element.get("class"))
        for element in root.iter(f"{HTML}rect")
    ]
    assert ("475.0", "450.0", "c++ done") in bars


def test_plenty_of_memory_leaves_the_used_in_sight(tmp_path: Path) -> None:
    root = page(tmp_path, [moment(0, used=0.5, allowed=30), moment(9, used=1, allowed=22)])
    assert "top: 1.0 GiB; allowed: 22.0 GiB and more, far above" in texts(root, "small")


@pytest.mark.parametrize("records", [[ran("<script>&.cpp", 0, 0)], [moment(0, used=0, allowed=0)]])
def test_builds_of_almost_nothing(tmp_path: Path, records: list[Record]) -> None:
    root = page(tmp_path, records)
    assert not [*root.iter(f"{HTML}script")]
    assert ("<script>&.cpp" in texts(root, "td")) == (len([*root.iter(f"{HTML}rect")]) == 1)


def test_a_name_cannot_hide_or_reorder_what_the_page_shows(tmp_path: Path) -> None:
    root = page(tmp_path, [ran("gpp.\u202ecod\u200b\x1b[2J", 0, 9)])
    text = "".join(texts(root, "td"))
    assert "gpp.\ufffdcod\ufffd\ufffd[2J" in text


def test_a_page_needs_nothing_else(tmp_path: Path) -> None:
    root = page(tmp_path)
    assert not [
        element
        for tag in ("script", "link", "img", "iframe")
        for element in root.iter(f"{HTML}{tag}")
    ]
    assert not [element for element in root.iter() if {"src", "href"} & {*element.attrib}]
    assert "url(" not in texts(root, "style")[0]


def test_a_wheel_is_told_with_its_cache_and_sizes(tmp_path: Path) -> None:
    wheel = made(tmp_path)
    for name in (WHEEL, ""):  # of the newest timeline, the wheel is found in dist/
        done = run(
            "invoke", "report", *([name] if name else []), "--out", str(tmp_path), home=tmp_path
        )
        assert done.returncode == 0, done.stderr
        root = ET.parse(tmp_path / "v1.13.1-wheel-3.10-cpu.html").getroot()  # noqa: S314 - our own
        assert "ccache 4.7.5: 3 of 4 hits (75%)" in texts(root, "p")
        assert texts(root, "p")[0].startswith("torch 1.13.1 (v1.13.1 wheel-3.10-cpu): built and")
        rows = [texts(row, "td") for row in root.iter(f"{HTML}tr")]
        assert ["torch/lib/libtorch_cpu.so", "4.9 KiB", "4.9 KiB"] in rows
        assert ["torch/<&>.py", "0 B", "0 B"] in rows
        assert [row[0] for row in rows if row[2:] == [""]] == [wheel.name, f"{wheel.name}.json"]


def test_the_builder_of_a_wheel_is_named_and_not_the_machine_that_draws(tmp_path: Path) -> None:
    wheel = made(tmp_path)
    workflow = "https://github.com/me/wheels.yml"
    sentence = describe_wheel(wheel, {**RELEASE, "builder": {"id": workflow, "torchmill": "1"}})
    assert sentence.endswith(f" by {workflow}, for linux_x86_64")
    local = describe_wheel(wheel, {**RELEASE, "builder": describe_builder({})})
    assert " by " not in local


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="there is no chromium: apt-get install chromium")
@pytest.mark.parametrize(("extra_options", "dark"), [([], False), (["--force-dark-mode"], True)])
def test_a_browser_draws_it_light_and_dark(
    tmp_path: Path, extra_options: list[str], dark: bool
) -> None:
    page(tmp_path, wheel=made(tmp_path))
    options = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--window-size=1100,1500",
        f"--user-data-dir={tmp_path}/u",
    ]
    options += [f"--screenshot={tmp_path}/shot.png", *extra_options]
    address = (tmp_path / "page.html").as_uri()
    done = subprocess.run(
        [str(BROWSER), *options, address], capture_output=True, text=True, timeout=BROWSER_SECONDS, check=False,
        env={**os.environ, "HOME": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    shot = matplotlib.image.imread(tmp_path / "shot.png")[..., :3]
    assert (shot[5, 5].max() < 0.2) == dark
    assert (shot[5, 5].min() > 0.9) != dark
    used = (abs(shot - [0x4C / 255, 0x86 / 255, 0xC6 / 255]) < 0.01).all(axis=2).sum()
    assert used > 20_000, "the area of the memory in use is drawn in its colour"
    assert "Refused" not in done.stderr


def test_a_build_that_failed_is_told_with_its_cause(tmp_path: Path) -> None:
    root = failed_page(
        tmp_path,
        "Cuda compilation tools, release 9.0, V9.0.176",
        "GPU 0: NVIDIA TITAN RTX",
        REFUSED,
    )
    assert texts(root, "h2")[0] == "why it failed"
    assert any("(gpu-of-another-toolkit)" in text for text in texts(root, "p"))
    rows = [texts(row, "td") for row in root.iter(f"{HTML}tr")]
    assert [
        "nvcc of CUDA 9.0",
        "line 1",
        "Cuda compilation tools, release 9.0, V9.0.176",
    ] in rows
    (command,) = texts(root, "pre")
    assert command
    assert any(text.startswith("fix: ") and command in text for text in texts(root, "p"))


def test_reasons_that_are_left_come_with_the_command_that_tells(tmp_path: Path) -> None:
    root = failed_page(tmp_path, REFUSED)
    assert any(text.startswith("or: ") and "shows it" in text for text in texts(root, "li"))


def test_a_failure_without_a_cause_says_so(tmp_path: Path) -> None:
    root = failed_page(tmp_path, "nvcc error   : something that nobody has seen before")
    assert "the catalogue of causes has no entry for this" in texts(root, "p")


def test_a_log_cannot_write_into_the_page(tmp_path: Path) -> None:
    root = failed_page(
        tmp_path,
        "Cuda compilation tools, release 9.0, V9.0</code><script>alert(1)</script>",
        f"{REFUSED} <img src=x onerror=alert(1)>\x1b[2J\u202e",
    )
    assert not [element for tag in ("script", "img") for element in root.iter(f"{HTML}{tag}")]
    page_text = "".join(root.itertext())
    assert "<script>alert(1)</script>" in page_text
    assert "\x1b" not in page_text
    assert "\u202e" not in page_text


def test_the_log_beside_the_timeline_is_diagnosed(tmp_path: Path) -> None:
    layout = Layout(tmp_path, tmp_path / "cache")
    layout.logs.mkdir(parents=True)
    name = "v1.13.1-wheel-3.10-cpu"
    timeline(layout.logs / f"{name}.timeline.jsonl", small())
    (layout.logs / f"{name}.log").write_text(f"[1/2] a\n{REFUSED}\n", encoding="utf-8")
    done = run("invoke", "report", "--out", str(tmp_path), home=tmp_path)
    assert done.returncode == 0, done.stderr
    assert f"line 2 of {layout.logs / name}.log" in done.stdout
    root = ET.parse(tmp_path / f"{name}.html").getroot()  # noqa: S314 - our own
    assert texts(root, "h2")[0] == "why it failed"
