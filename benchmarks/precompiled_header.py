"""What a precompiled header saves when torch_python is compiled, and whether it changes the objects.

PYTHONPATH=. python benchmarks/precompiled_header.py --tree torch/build --results FILE
PYTHONPATH=. python benchmarks/precompiled_header.py --render FILE

The tree is a build tree of torch 1.13.1, built with ninja; nothing is written to it. Every file is compiled without a
precompiled header, and then with each one included before everything else, as CMake's target_precompile_headers does.
"""

import hashlib
import os
import tempfile
import time
from argparse import Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path

import compile_commands
import results
from compile_commands import Command
from results import Row

from torchmill.deliver import wheel_comparison

PLAIN = "without"
HEADER_ITSELF = "the header itself"  # in place of the source in a row
HEADERS = {  # the headers that each precompiled header includes
    "ATen": ("ATen/ATen.h",),  # as upstream does with USE_PRECOMPILED_HEADERS
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
# Its switches are those of nearly all files; gcc takes a precompiled header only with the same switches.
MODEL = "torch/csrc/Storage.cpp"


def run(options: Namespace) -> None:
    """Precompile the headers, then compile every file without a header and with each of them."""
    commands = compile_commands.read_commands(options.tree)
    with tempfile.TemporaryDirectory(prefix="header-", dir=options.folder) as name:
        folder = Path(name)
        for header in options.headers:
            row = precompile(commands[MODEL], folder, header)
            results.record(options.results, {"header": header, **row})
        for number in range(options.rounds):
            for source in options.sources:
                compare_headers(
                    commands[source], folder, options, source=source, round_number=number
                )


def compare_headers(
    command: Command, folder: Path, options: Namespace, *, source: str, round_number: int
) -> None:
    """Compile one file without a header and with each; record the costs and the differences of objects."""
    plain_object = folder / f"{PLAIN}.o"
    for header in (PLAIN, *options.headers):
        path = folder / f"{header}.o"
        flags: list[str] = []
        if header != PLAIN:
            flags = ["-Winvalid-pch", "-include", str(folder / f"{header}.hxx")]
        row = {
            "header": header,
            "source": source,
            "round": round_number,
            "busy": results.busy_share(),
            **compile_file(command, path, flags),
        }
        if row["good"] and header != PLAIN:
            row["differs"] = describe_difference(plain_object, path)
        results.record(options.results, row)


def precompile(command: Command, folder: Path, name: str) -> dict[str, object]:
    """Write and precompile one of HEADERS with the switches of a compile command; return the cost."""
    header = folder / f"{name}.hxx"
    text = "".join(f"#include <{path}>\n" for path in HEADERS[name])
    header.write_text(text, encoding="ascii")
    precompiled = Path(f"{header}.gch")  # the name under which gcc looks for it
    argv = command.with_output(str(precompiled))
    source_index = next(index for index, word in enumerate(argv) if word.endswith(".cpp"))
    argv[source_index] = str(header)
    argv[argv.index("-c")] = "-xc++-header"
    cost = measure_compile(argv, command.folder)
    size = precompiled.stat().st_size
    return {"source": HEADER_ITSELF, "round": 0, **cost, "size": size}


def compile_file(command: Command, path: Path, flags: Sequence[str]) -> dict[str, object]:
    """Compile one file to an object at `path`; return the cost, and the object's size and digest."""
    cost = measure_compile(command.with_output(str(path), flags), command.folder)
    if not cost["good"]:
        return cost
    content = path.read_bytes()
    return {**cost, "size": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def measure_compile(argv: Sequence[str], folder: Path) -> dict[str, object]:
    """Run a compiler; return its seconds, the peak of its largest process in KiB, and whether it succeeded."""
    start = time.monotonic()
    pid = os.posix_spawnp("env", ["env", "-C", str(folder), *argv], os.environ)
    _, status, usage = os.wait4(pid, 0)
    return {
        "cpu": usage.ru_utime + usage.ru_stime,
        "seconds": time.monotonic() - start,
        "peak_kib": usage.ru_maxrss,
        "good": os.waitstatus_to_exitcode(status) == 0,
    }


def describe_difference(plain_object: Path, other: Path) -> str:
    """Say how two objects differ; "" if they are the same bytes."""
    before, after = plain_object.read_bytes(), other.read_bytes()
    return "" if before == after else wheel_comparison.describe_difference(before, after)


def lines(rows: Sequence[Row]) -> Iterator[Sequence[object]]:
    """Yield a line of the table for each file, and one for the sum of all files."""
    good = [row for row in rows if row["good"] and "round" in row]
    headers = _recorded_headers(rows)
    for source, runs in results.grouped(good, "source").items():
        cells = []
        for header in headers:
            seconds = [row["cpu"] for row in runs if row["header"] == header]
            cells.append(results.spread(seconds, 1))
        yield source, *cells
    sums = dict.fromkeys(headers, 0.0)
    files = [row for row in good if row["source"] != HEADER_ITSELF]
    for runs in results.grouped(files, "source", "round").values():
        # Only files that compiled with every header are comparable.
        if {row["header"] for row in runs} == set(headers):
            for row in runs:
                sums[row["header"]] += row["cpu"]
    ratios = ["-"] * len(headers)
    if sums[PLAIN]:
        ratios = [f"{sums[header] / sums[PLAIN]:.3f}" for header in headers]
    yield "all of them, / without", *ratios


def _recorded_headers(rows: Sequence[Row]) -> list[str]:
    recorded = {row["header"] for row in rows}
    return [header for header in (PLAIN, *HEADERS) if header in recorded]


def render(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the table, and the differences of the objects of round 0."""
    yield results.table(("CPU seconds", *_recorded_headers(rows)), lines(rows))
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
