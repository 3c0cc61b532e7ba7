"""What a precompiled header saves the files of torch_python, and whether it changes the objects.

python benchmarks/precompiled_header.py --tree torch/build --results FILE
python benchmarks/precompiled_header.py --render FILE

The tree is a build tree of torch 1.13.1, built with ninja; nothing is written to it. Every file is compiled
by turns without, and with each header before everything else, as CMake's target_precompile_headers does it.
"""

import hashlib
import os
import tempfile
import time
from argparse import Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path

import compare_wheels
import compile_commands
import results
from compile_commands import Command
from results import Row

PLAIN = "without"
HEADERS = {  # what is precompiled
    "ATen": ("ATen/ATen.h",),  # upstream's own, of USE_PRECOMPILED_HEADERS
    "Python": (
        "torch/csrc/python_headers.h",
        "torch/csrc/utils/pybind.h",
        "torch/csrc/autograd/python_variable.h",
    ),
    "both": (
        "torch/csrc/python_headers.h",
        "ATen/ATen.h",
        "torch/csrc/utils/pybind.h",
        "torch/csrc/autograd/python_variable.h",
        "torch/csrc/Exceptions.h",
    ),
    "all": (
        "torch/csrc/python_headers.h",
        "ATen/ATen.h",
        "torch/csrc/autograd/python_variable.h",
        "torch/csrc/jit/python/pybind_utils.h",
    ),
}
SOURCES = (
    "torch/csrc/jit/python/python_ir.cpp",
    "torch/csrc/autograd/init.cpp",
    "torch/csrc/jit/python/python_sugared_value.cpp",
    "torch/csrc/autograd/python_variable.cpp",
    "torch/csrc/Module.cpp",
    "torch/csrc/autograd/generated/python_functions_0.cpp",
    "torch/csrc/jit/passes/onnx/fixup_onnx_controlflow.cpp",
    "torch/csrc/Storage.cpp",
    "torch/csrc/utils/tensor_new.cpp",
    "torch/csrc/autograd/generated/python_variable_methods.cpp",
    "torch/csrc/autograd/generated/python_linalg_functions.cpp",
    "torch/csrc/jit/passes/onnx/peephole.cpp",
)
MODEL = "torch/csrc/Storage.cpp"  # whose switches are those of all but a few


def run(options: Namespace) -> None:
    """Compile everything in turn."""
    commands = compile_commands.read_commands(options.tree)
    with tempfile.TemporaryDirectory(prefix="header-", dir=options.folder) as name:
        folder = Path(name)
        for header in options.headers:
            row = precompile(commands[MODEL], folder, header)
            results.record(options.results, {"header": header, **row})
        for number in range(options.rounds):
            for source in options.sources:
                plain: Path | None = None
                for header in (PLAIN, *options.headers):
                    made = folder / f"{header}.o"
                    flags = (
                        []
                        if header == PLAIN
                        else ["-Winvalid-pch", "-include", str(folder / f"{header}.hxx")]
                    )
                    row = {
                        "header": header,
                        "source": source,
                        "round": number,
                        "busy": results.busy_share(),
                    }
                    row |= compiled(commands[source], made, flags)
                    plain = plain or made
                    if row["good"] and made != plain:
                        row |= {"differs": difference(plain, made)}
                    results.record(options.results, row)


def precompile(command: Command, folder: Path, name: str) -> dict[str, object]:
    """Write and precompile a header; return what that took."""
    header = folder / f"{name}.hxx"
    header.write_text("".join(f"#include <{one}>\n" for one in HEADERS[name]), encoding="ascii")
    words = command.with_output(f"{header}.gch")
    source = next(word for word in words if word.endswith(".cpp"))
    words[words.index(source)] = str(header)
    words[words.index("-c")] = "-xc++-header"
    row = spent(words, command.folder)
    return {
        "source": "the header itself",
        "round": 0,
        **row,
        "size": Path(f"{header}.gch").stat().st_size,
    }


def compiled(command: Command, made: Path, flags: Sequence[str]) -> dict[str, object]:
    """Compile one file; return what that took."""
    row = spent(command.with_output(str(made), flags), command.folder)
    if not row["good"]:
        return row
    text = made.read_bytes()
    return {**row, "size": len(text), "sha256": hashlib.sha256(text).hexdigest()}


def spent(argv: Sequence[str], folder: Path) -> dict[str, object]:
    """Run a compiler; return its times in seconds, its peak in KiB, and whether it went well."""
    start = time.monotonic()
    pid = os.posix_spawnp("env", ["env", "-C", str(folder), *argv], os.environ)
    _, status, used = os.wait4(pid, 0)
    times = {"cpu": used.ru_utime + used.ru_stime, "seconds": time.monotonic() - start}
    return {**times, "peak_kib": used.ru_maxrss, "good": os.waitstatus_to_exitcode(status) == 0}


def difference(plain: Path, other: Path) -> str:
    """Say in what two objects differ; "" where they are the same bytes."""
    before, after = plain.read_bytes(), other.read_bytes()
    return "" if before == after else compare_wheels.describe_difference(before, after)


def lines(rows: Sequence[Row]) -> Iterator[Sequence[object]]:
    """Yield a line of the table for each file, and one for all of them."""
    good = [row for row in rows if row["good"] and "round" in row]
    heads = _headers(rows)
    for source, found in results.grouped(good, "source").items():
        cells = [[row["cpu"] for row in found if row["header"] == head] for head in heads]
        yield source, *(results.spread(values, 1) for values in cells)
    files = results.grouped(
        (row for row in good if row["source"] != "the header itself"),
        "source",
        "round",
    )
    whole = [
        row
        for found in files.values()
        if {row["header"] for row in found} == {*heads}
        for row in found
    ]
    sums = {head: sum(row["cpu"] for row in whole if row["header"] == head) for head in heads}
    yield (
        "all of them, / without",
        *(f"{sums[head] / sums[PLAIN]:.3f}" if sums[PLAIN] else "-" for head in heads),
    )


def _headers(rows: Sequence[Row]) -> list[str]:
    return [name for name in (PLAIN, *HEADERS) if any(row["header"] == name for row in rows)]


def render(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the table, and in what objects differ."""
    yield results.table(("CPU seconds", *_headers(rows)), lines(rows))
    for row in rows:
        if row["good"] and row.get("round") == 0 and "differs" in row:
            yield f"{row['source']}, {row['header']}: {row['differs'] or 'the same bytes'}"


def main() -> None:
    """Run, or render what was run."""
    parser = results.parser(__doc__)
    parser.add_argument("--tree", type=Path, help="build tree of torch, built with ninja")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--folder", type=Path, help="where to work")
    results.add_choice(parser, "--headers", tuple(HEADERS))
    results.add_choice(parser, "--sources", SOURCES)
    options = results.parse_options(
        parser, "tree", "the build tree whose compile commands are to be run"
    )
    results.run_or_render(options, run, render)


if __name__ == "__main__":
    main()
