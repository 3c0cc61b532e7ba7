"""Write a recording, and what its build made, as one page of HTML that needs nothing else."""

from contextlib import suppress
from pathlib import Path
from zipfile import BadZipFile, ZipFile

from jinja2 import Environment, FileSystemLoader

from torchmill.build.progress_line import format_clock
from torchmill.commands.report.picture import BARS, FAR, FINE, GIB, columns
from torchmill.commands.report.recording import Recording, build_headline, describe_sums, sum_up
from torchmill.core.units import format_bytes
from torchmill.toolchain.compiler_cache import CacheHits
from torchmill.toolchain.guard.units import unit_title
from torchmill.wheel.dist_files import companion_paths, read_manifest

MEMBERS = 15  # the largest of the wheel


def write_page(recording: Recording, path: Path, wheel: Path | None) -> None:
    """Write the page of a recording; `wheel` is what its build made, None where that is not known."""
    pages = Environment(loader=FileSystemLoader(Path(__file__).parent), autoescape=True)
    pages.filters |= {"bytes": format_bytes, "clock": format_clock, "unit": unit_title}
    sums, cache, members = sum_up(recording), read_manifest(wheel).get("cache") if wheel else None, []
    with suppress(OSError, BadZipFile), ZipFile(wheel or "") as archive:
        members = sorted(archive.infolist(), key=lambda one: -one.file_size)[:MEMBERS]
    text = pages.get_template("page.html").render(
        recording=recording,
        wall=max(recording.wall, 1.0),
        lines=[build_headline(sums), *describe_sums(sums)],
        columns=columns(recording.moments, FINE) if recording.moments else [],
        far=FAR,
        gib=GIB,
        runs=sorted(recording.runs, key=lambda one: -one.seconds)[:BARS],
        cache=cache and CacheHits(**cache),
        files=[one for one in (wheel, *companion_paths(wheel)) if one.is_file()] if wheel else [],
        members=members,
    )
    path.write_text(text, encoding="utf-8")
