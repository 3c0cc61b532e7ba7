"""Build projects below memory limits: fixed numbers of jobs, and `millguard --`.

python benchmarks/guarded_builds.py --torch SITE_PACKAGES --project tree --caps 2,3 --rounds 2 --results FILE
python benchmarks/guarded_builds.py --torch SITE_PACKAGES --project llvm --sources FOLDER --caps 12 --results FILE
python benchmarks/guarded_builds.py --render FILE

SITE_PACKAGES is the folder of packages of an environment in which torch is installed. FOLDER has the unpacked sources,
in folders named as PROJECTS says; the project "tree" needs none, because its sources are written here: heavy files
include torch's header for extensions, light ones a part of the standard library.

Contenders take turns in each round. "cold" is a guard that has never built this project, "warm" one that has built it
in the same round. Needs root, for the control group.

A freeze would show as pressure: `full` is the share of the time in which every process that wanted to run waited for
memory, by /proc/pressure/memory, of the whole machine.
"""

import os
import resource
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from argparse import Namespace
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import memory_cap
import results
from results import Row
from timed_command import run_timed

GIB = 2**30
LIMIT_SECONDS = 7200.0
HEAVY, LIGHT = 6, 18
HEAVY_SOURCE = """#include <torch/extension.h>
at::Tensor heavy_%d(at::Tensor x) { return (x * %d).sum(); }
"""
LIGHT_SOURCE = """#include <map>
#include <regex>
#include <string>
int light_%d() { std::map<std::string, std::regex> found; return (int)found.size() + %d; }
"""
PRESSURE = Path("/proc/pressure/memory")
FIXED = ("-j1", "-j2", "-j4")
TREE = "tree"
COLD, WARM = "guard cold", "guard warm"
CONTENDERS = (*FIXED, COLD, WARM)
WHEEL = "pip wheel -q --no-deps --no-cache-dir --no-build-isolation -w products ."
# Headers of torch 2.14 and newer are C++20; these releases' setup.py ask for C++17, or less.
NEWER_STANDARD = "sed -i 's/std=c++1[47]/std=c++20/g' setup.py"


@dataclass(frozen=True, slots=True)
class Project:
    """A project whose source is prepared once and built many times, by shell commands in its folder."""

    folder: str  # of its unpacked source
    prepare: str
    build: str  # "$JOBS" stands for a number of jobs; it is empty for the guard, which sets one
    environment: dict[str, str]


# The kernels of flash-attn that are compiled, of its 72: causal ones take the least time, and each of
# these fits into 6 GiB.
FLASH_KERNELS = "flash_(fwd_hdim(32|64)_fp16|bwd_hdim32_(fp16|bf16))_causal_sm80.cu"
PROJECTS = {
    TREE: Project(folder=TREE, prepare=":", build="make ${JOBS:+-j$JOBS}", environment={}),
    "torch-scatter": Project(
        folder="torch_scatter-2.1.2",
        prepare=NEWER_STANDARD,
        build=WHEEL,
        environment={"FORCE_ONLY_CPU": "1"},
    ),
    "causal-conv1d": Project(
        folder="causal_conv1d-1.7.0",
        # Without capabilities of its own in setup.py, torch's builder takes those of the build.
        prepare=f"{NEWER_STANDARD}; sed -i 's/^ *+ cc_flag$//' setup.py",
        build=WHEEL,
        environment={"CAUSAL_CONV1D_FORCE_BUILD": "TRUE"},
    ),
    "flash-attn": Project(
        folder="flash_attn-2.8.3",
        prepare=f"{NEWER_STANDARD}; sed -i -E '/flash_(fwd|bwd).*\\.cu\",/{{/{FLASH_KERNELS}/!d}}' setup.py",
        build="python setup.py -q build_ext --build-temp objects --build-lib products",
        environment={"FLASH_ATTENTION_FORCE_BUILD": "TRUE", "FLASH_ATTN_CUDA_ARCHS": "90"},
    ),
    "mmcv": Project(
        folder="mmcv-2.2.0",
        prepare=NEWER_STANDARD,
        build=WHEEL,
        environment={"MMCV_WITH_OPS": "1", "FORCE_CUDA": "1"},
    ),
    "llvm": Project(
        folder="llvm",
        prepare="cmake -S llvm -B ../configured -G Ninja -DCMAKE_BUILD_TYPE=Release "
        "-DLLVM_TARGETS_TO_BUILD=X86 -DLLVM_INCLUDE_TESTS=OFF -DLLVM_INCLUDE_BENCHMARKS=OFF",
        # The sources are those that were configured: build.ninja has their absolute paths.
        build="cp -a ../configured build && cmake --build build --target LLVMSupport -- ${JOBS:+-j$JOBS}",
        environment={},
    ),
}


def full_stall_seconds() -> float:
    """Return for how long all processes have waited for memory since the machine started."""
    for line in PRESSURE.read_text(encoding="ascii").splitlines():
        kind, *fields = line.split()
        if kind == "full":
            values = dict(field.split("=") for field in fields)
            return int(values["total"]) / 1e6
    raise SystemExit(f"{PRESSURE} has no line 'full'")


def computed_seconds() -> float:
    """Return the processor time of all processes that this one has started, and that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def write_tree(folder: Path) -> None:
    """Write sources and a Makefile; heavy and light files alternate, as in a real tree."""
    folder.mkdir()
    names = []
    for number in range(HEAVY + LIGHT):
        is_heavy = number % ((HEAVY + LIGHT) // HEAVY) == 0
        source = HEAVY_SOURCE if is_heavy else LIGHT_SOURCE
        name = f"{'heavy' if is_heavy else 'light'}{number}"
        (folder / f"{name}.cpp").write_text(source % (number, number), encoding="utf-8")
        names.append(f"{name}.o")
    includes = ("$(TORCH)/torch/include", "$(TORCH)/torch/include/torch/csrc/api/include")
    flags = " ".join(f"-I{path}" for path in (*includes, sysconfig.get_path("include")))
    rules = f"all: {' '.join(names)}\n%.o: %.cpp\n\t@c++ -std=c++20 -O2 -fPIC {flags} -c $< -o $@\n"
    (folder / "Makefile").write_text(rules, encoding="utf-8")


def prepare(project: Project, sources: Path, folder: Path) -> Path:
    """Copy a project's source into a folder, make it ready to build, and return its place."""
    source = folder / project.folder
    if project.folder == TREE:
        write_tree(source)
    else:
        shutil.copytree(sources / project.folder, source, symlinks=True)
    subprocess.run(
        ["sh", "-ec", project.prepare], cwd=source, check=True, stdout=subprocess.DEVNULL
    )
    return source


def build_environment(project: Project, torch: Path, jobs: str, cache: Path) -> dict[str, str]:
    """Return the environment of a build: torch's Python first on PATH, CUDA's headers from its wheels."""
    programs = torch.parents[2] / "bin"
    environ = {
        **{name: value for name, value in os.environ.items() if name != "MAX_JOBS"},
        "PATH": f"{programs}:{os.environ['PATH']}",
        "CPATH": str(torch / "nvidia/cu13/include"),
        "CUDA_HOME": "/usr/local/cuda-13.0",
        "TORCH_CUDA_ARCH_LIST": "9.0",
        "CCACHE_DISABLE": "1",
        "MILLGUARD_CACHE": str(cache),
        "JOBS": jobs,
        "TORCH": str(torch),
        # Builds of others that run at the same time would have a share of the memory and processors.
        "MILLGUARD_BOARD": "",
        **project.environment,
    }
    if jobs:
        # What a user who chose a number of jobs sets; nvcc's own threads would multiply it.
        environ |= {"MAX_JOBS": jobs, "NVCC_THREADS": "1"}
    return environ


@dataclass(frozen=True, slots=True)
class Setup:
    """What all contenders build."""

    project: Project
    prepared: Path  # its source, ready to build
    torch: Path  # the folder that torch is installed in


def build(setup: Setup, cap: float, contender: str) -> dict[str, object]:
    """Let one contender build a copy of the source below a limit in GiB; describe what happened."""
    project = setup.project
    source = setup.prepared.with_name("copy")
    shutil.rmtree(source, ignore_errors=True)
    shutil.copytree(setup.prepared, source, symlinks=True)
    cache = setup.prepared.with_name(f"cache-{cap:g}")
    if contender == COLD:
        shutil.rmtree(cache, ignore_errors=True)
    if contender in FIXED:
        jobs = contender.removeprefix("-j")
        words = ["sh", "-ec", project.build]
    else:
        jobs = ""
        # The project's Python must not see this one's path of millguard.
        plain = ["env", "-u", "PYTHONPATH", "sh", "-ec", project.build]
        words = [sys.executable, "-m", "millguard", "--", *plain]
    memory_cap.reclaim_memory(int(cap * GIB))
    with memory_cap.Cap(int(cap * GIB)) as group:
        environ = build_environment(project, setup.torch, jobs, cache)
        stalled_before = full_stall_seconds()
        computed_before = computed_seconds()
        done, seconds = run_timed(group.inside(words), source, environ, LIMIT_SECONDS)
        stalled = full_stall_seconds() - stalled_before
        kills = group.kills()
    row = {
        "cap": cap,
        "contender": contender,
        "seconds": round(seconds, 1),
        "computed": round(computed_seconds() - computed_before, 1),
        "full": round(stalled / seconds, 3),
        "built": done.returncode == 0,
        "kills": kills,
        "guard": _last_line(done.stderr) if contender in {COLD, WARM} else "",
    }
    if done.returncode != 0:
        row["said"] = (done.stdout + done.stderr)[-3000:]
    return row


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1] if lines else ""


def run(options: Namespace) -> None:
    """Let all contenders build below each limit, in turns."""
    project = PROJECTS[options.project]
    with tempfile.TemporaryDirectory(prefix="guarded-builds-") as name:
        prepared = prepare(project, options.sources, Path(name))
        setup = Setup(project, prepared, options.torch)
        caps = [float(word) for word in options.caps.split(",")]
        for number in range(options.rounds):
            for cap in caps:
                for contender in options.contenders:
                    row = build(setup, cap, contender)
                    named = {"round": number, "project": options.project}
                    results.record(options.results, {**named, **row})


def render(rows: Sequence[Row]) -> Iterator[str]:
    """Yield a table: each contender below each limit, relative to the best fixed number of the same round."""
    best: dict[tuple[str, float, int], float] = {}
    for row in rows:
        if row["contender"] in FIXED and row["built"]:
            key = row["project"], row["cap"], row["round"]
            best[key] = min(row["seconds"], best.get(key, row["seconds"]))
    lines = []
    for (project, cap, contender), mine in results.grouped(
        rows, "project", "cap", "contender"
    ).items():
        built = [row for row in mine if row["built"]]
        ratios = []
        for row in built:
            fastest = best.get((project, cap, row["round"]))
            if fastest is not None:  # None: no fixed number survived, or none was tried
                ratios.append(row["seconds"] / fastest)
        stalls = [row["full"] for row in mine]
        lines.append(
            [
                project,
                f"{cap:g} GiB",
                contender,
                f"{len(built)} of {len(mine)}",
                sum(row["kills"] for row in mine),
                f"{max(stalls):.0%}",
                results.spread([row["seconds"] for row in built], 0),
                results.spread(ratios),
            ]
        )
    yield results.table(
        [
            "project",
            "limit",
            "contender",
            "built",
            "kills",
            "full, at most",
            "seconds",
            "/ best -j",
        ],
        lines,
    )


def main() -> None:
    """Run or render."""
    parser = results.parser(__doc__)
    parser.add_argument("--sources", type=Path, help="a folder with the unpacked sources")
    parser.add_argument("--torch", type=Path, help="a folder with an installed torch")
    parser.add_argument("--project", choices=PROJECTS)
    parser.add_argument("--caps", default="3,4", help="limits in GiB, split at commas")
    parser.add_argument("--rounds", type=int, default=2)
    results.add_choice(parser, "--contenders", CONTENDERS)
    options = parser.parse_args()
    wanted = (options.torch, options.project)
    if options.render is None and None in wanted:
        parser.error("--torch and --project are needed to run")
    if options.project not in (None, TREE) and options.sources is None:
        parser.error(f"--sources is missing: a folder that has {PROJECTS[options.project].folder}")
    results.run_or_render(options, run, render)


if __name__ == "__main__":
    main()
