"""Parse the C++ files of extensions against the headers of every torch, and record the results.

    python -m tools.syntax.parse_cells scatter-3.12-cpu cluster-3.12-cpu --torch 2.15.0,2.14.1
    python -m tools.syntax.parse_cells --write      # results of the cache -> build_configs/parsed.toml

A cell parses if `g++ -fsyntax-only` accepts each of its C++ files, with the flags of its own
setup.py, against the headers of a torch on the index. That includes templates and all types, but no
code is made, nothing is linked, and nothing runs. So it is weaker evidence than a build, and has a
word of its own. CUDA files are left out: nvcc has no such option.

Most of the time goes into torch's headers. Several files that include the same one of them get it
precompiled, before their own first line: then only the order of includes differs. A file that is
refused is parsed again as it is.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

import requests

from tools.fact_schemas import schema_line
from tools.syntax.torch_headers import provide_headers
from torchmill.cell.environment import fill_placeholders
from torchmill.config import remembered_facts
from torchmill.config.facts import Facts
from torchmill.config.parsed import FILE, ParsedSource
from torchmill.config.release_lookup import base_package, find_release
from torchmill.config.versions import version_key
from torchmill.core.atomic_writes import write_atomically
from torchmill.core.errors import BuildError, SourceError, TorchmillError
from torchmill.core.paths import CHECKOUT, Layout
from torchmill.core.stat_cache import StatCache, digest_data
from torchmill.fetch.source.source_dir import load_source
from torchmill.host import interpreters
from torchmill.host.measurement import measure_basic_host
from torchmill.plan import build_plan, cell_lookup
from torchmill.plan.build_options import NO_OPTIONS
from torchmill.plan.cell import Cell
from torchmill.plan.cell_lookup import fetch_command
from torchmill.plan.plan import Plan
from torchmill.wheel.verify.clean_environment import CHECK_SCRIPTS

_ARCH = "x86_64"
_RECORDER = CHECK_SCRIPTS / "record_compiles.py"
_SUFFIXES = {".cpp", ".cc", ".cxx", ".c"}
# What no parse depends on: optimization, debug information, warnings.
_WITHOUT_EFFECT = re.compile(r"-(O\w*|g\d?|W.*)$")
# Macros of single files, which torch's headers do not ask for.
_OF_FILE = ("-DTORCH_EXTENSION_NAME=", "-DWITH_")
_TORCH_INCLUDE = re.compile(r'^\s*#\s*include\s*[<"](torch/\w+\.h)[>"]', re.MULTILINE)
_OWN_INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"', re.MULTILINE)
_ERROR = re.compile(r"^(?P<file>[^\s:][^:]*):(?P<line>\d+):(\d+:)? (fatal )?error: (?P<text>.*)$")
_LONGEST_ERROR = 200  # characters
# That torch's own modules for extensions import, and no package need require.
_REQUIREMENTS = ("typing_extensions", "packaging")


@dataclass(frozen=True, slots=True)
class ParseResult:
    """The result for one cell."""

    package: str
    release: str
    torch: str
    variant: str
    python: str
    compiler: str
    date: str
    files: int  # C++ files
    left_out: int  # files in other languages, such as CUDA
    error: str  # of the first file that is refused; "" if none is


class CellParser:
    """Parses the files of cells; everything that it needs is kept in the folder `cache`."""

    def __init__(self, facts: Facts, cache: Path) -> None:
        self.facts = facts
        self.cache = cache
        self.session = requests.Session()
        self.compiler = _compiler_version()
        self._last_headers: Path | None = None

    def parse(self, name: str, torch: str) -> ParseResult:
        """Parse the files of a cell, "scatter-3.12-cpu", against a release of torch.

        Raises TorchmillError.
        """
        base = base_package(self.facts).name
        selected = find_release(self.facts, base, f"v{torch}")
        cell = cell_lookup.find_cell(self.facts, name, _ARCH, selected)
        plan = build_plan.compute_plan(
            self.facts,
            cell,
            measure_basic_host(StatCache(Layout.of_checkout(CHECKOUT).stat_cache)),
            NO_OPTIONS,
        )
        build = cell.build
        headers = provide_headers(torch, build.python, self.cache, self.session)
        self._forget_other_headers(headers)
        folder = self._prepare(cell, plan)
        python = self._provide_python(cell, plan)
        commands = self._record(folder, plan, python, headers)
        error = ""
        files = [argv for argv in commands if Path(_source(argv)).suffix in _SUFFIXES]
        shared = shared_headers(folder, files)
        for argv in files:
            error = self._refusal(folder, argv, headers, shared.get(_source(argv)))
            if error:
                break
        return ParseResult(
            package=build.package,
            release=cell.release.version,
            torch=torch,
            variant=build.variant,
            python=build.python,
            compiler=self.compiler,
            date=datetime.now(UTC).date().isoformat(),
            files=len(files),
            left_out=len(commands) - len(files),
            error=error,
        )

    def _prepare(self, cell: Cell, plan: Plan) -> Path:
        """Return a copy of the fetched source, with the patches and preparations of its plan."""
        layout = Layout.of_checkout(CHECKOUT)
        source = load_source(layout, cell.build.package, cell.release.tag)
        if source is None:
            raise SourceError(
                f"{cell.release} is not fetched: run `{fetch_command(self.facts, cell)}`",
                code="source-not-fetched",
            )
        folder = self.cache / "source" / cell.build.package
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(source.path, folder, symlinks=True)
        places = {"patches": str(self.facts.folder / "patches"), "source": str(folder)}
        for command in plan.tree.preparation:
            argv = [fill_placeholders(word, places) for word in command.argv]
            outside = {"GIT_CEILING_DIRECTORIES": str(folder.parent)}
            subprocess.run(argv, cwd=folder, check=True, env={**os.environ, **outside})
        return folder

    def _provide_python(self, cell: Cell, plan: Plan) -> Path:
        """Return the Python of an environment that has what the build requires, except torch."""
        venv = self.cache / f"venv-{cell.build.python}"
        python = venv / "bin" / "python"
        if not python.exists():
            interpreter = interpreters.resolve_interpreter(cell.build.python)
            subprocess.run([interpreter, "-m", "venv", venv], check=True)
        complete = venv / f"{cell.build.package}.installed"
        if not complete.exists():
            requirements = [word for word in plan.requirements if not word.startswith("torch==")]
            install: list[str | Path] = [
                python,
                "-m",
                "pip",
                "install",
                "--quiet",
                *_REQUIREMENTS,
                *requirements,
            ]
            subprocess.run(install, check=True)
            complete.touch()
        return python

    def _record(self, folder: Path, plan: Plan, python: Path, headers: Path) -> list[list[str]]:
        """Return the compile commands that the setup.py in a folder would run."""
        output = folder / "recorded.json"
        places = {"tree": str(folder.parent), "source": str(folder), "venv": str(python.parents[1])}
        variables = {}
        for name, value in plan.variables.items():
            if name not in {"PATH", "CFLAGS", "CXXFLAGS"}:
                variables[name] = fill_placeholders(value, places)
        variables |= {
            "PATH": f"{python.parent}:/usr/bin:/bin",
            "TORCH_NO_COMPILER_WRAPPER": "1",  # torch 2.14 and newer would name ccache
        }
        argv = [python, _RECORDER, headers, output]
        done = subprocess.run(
            argv, cwd=folder, env=variables, capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise BuildError(
                f"setup.py of {plan.release} failed: {done.stderr.strip().splitlines()[-1]}",
                code="preparation-failed",
            )
        commands: list[list[str]] = json.loads(output.read_text(encoding="utf-8"))
        return commands

    def _refusal(
        self, folder: Path, argv: Sequence[str], headers: Path, torch_header: str | None
    ) -> str:
        """Return the first error in a file as "file:line: text"; "" if the compiler accepts it."""
        words = parse_words(argv)
        if torch_header is not None:
            precompiled = self._precompile(folder, argv, headers, torch_header)
            if not _errors(folder, [*words, "-include", str(precompiled)]):
                return ""
        lines = _errors(folder, words)
        for line in lines:
            match = _ERROR.match(line)
            if match:
                file = match["file"].removeprefix(f"{headers}/").removeprefix(f"{folder}/")
                return f"{file}:{match['line']}: {match['text'][:_LONGEST_ERROR]}"
        return f"{_source(argv)}: {lines[0][:_LONGEST_ERROR]}" if lines else ""

    def _precompile(self, folder: Path, argv: Sequence[str], headers: Path, header: str) -> Path:
        """Return a header that includes one of torch's and is precompiled for the flags of a file."""
        flags = []
        for word in parse_words(argv):
            if not word.startswith(_OF_FILE) and word != _source(argv):
                flags.append(word)
        key = digest_data([header, *flags])
        path = headers / "precompiled" / f"{key}.h"
        compiled = path.with_name(f"{path.name}.gch")
        if not compiled.exists():
            path.parent.mkdir(exist_ok=True)
            path.write_text(f"#include <{header}>\n", encoding="utf-8")
            words = [word for word in flags if word != "-fsyntax-only"]
            made = [*words, "-x", "c++-header", str(path), "-o", str(compiled)]
            subprocess.run(made, cwd=folder, check=True)
        return path

    def _forget_other_headers(self, headers: Path) -> None:
        """Delete the precompiled headers of the last torch: each takes hundreds of megabytes."""
        if self._last_headers not in {None, headers}:
            shutil.rmtree(self._last_headers / "precompiled", ignore_errors=True)
        self._last_headers = headers


def _source(argv: Sequence[str]) -> str:
    """Return the source file of a compile command."""
    return argv[argv.index("-c") + 1]


def parse_words(argv: Sequence[str]) -> list[str]:
    """Return a compile command that only parses, without what no parse depends on."""
    words = []
    remaining = iter(argv)
    for word in remaining:
        if word == "-o":
            next(remaining)
        elif word != "-c" and not _WITHOUT_EFFECT.match(word):
            words.append(word)
    return [*words, "-fsyntax-only", "-w"]


def _errors(folder: Path, words: Sequence[str]) -> list[str]:
    """Return the lines that a compiler that fails writes; [] if it accepts its file."""
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)
    return done.stderr.splitlines() or ["failed"] if done.returncode else []


def shared_headers(folder: Path, commands: Sequence[Sequence[str]]) -> dict[str, str]:
    """Return by source the header of torch that it includes, if another source includes it too."""
    headers = {}
    for argv in commands:
        source = _source(argv)
        places = [Path(word[2:]) for word in argv if word.startswith("-I")]
        header = _first_torch_header(folder, Path(source), places, set())
        if header is not None:
            headers[source] = header
    used = list(headers.values())
    return {source: header for source, header in headers.items() if used.count(header) > 1}


def _first_torch_header(
    folder: Path, file: Path, places: Sequence[Path], seen: set[Path]
) -> str | None:
    """Return the first header of torch that a file includes, itself or by the package's headers."""
    path = folder / file
    if path in seen or not path.is_file():
        return None
    seen.add(path)
    text = path.read_text(encoding="utf-8", errors="replace")
    match = _TORCH_INCLUDE.search(text)
    if match:
        return match[1]
    for name in _OWN_INCLUDE.findall(text):
        for place in (file.parent, *places):
            header = _first_torch_header(folder, place / name, places, seen)
            if header is not None:
                return header
    return None


def _compiler_version() -> str:
    done = subprocess.run(["g++", "-dumpfullversion"], capture_output=True, text=True, check=True)
    return f"g++ {done.stdout.strip()}"


def read_results(cache: Path) -> Iterator[ParseResult]:
    """Yield the results in the cache."""
    for path in sorted((cache / "results").glob("*.json")):
        yield ParseResult(**json.loads(path.read_text(encoding="utf-8")))


def merge_results(
    recorded: Sequence[ParsedSource], results: Sequence[ParseResult]
) -> list[ParsedSource]:
    """Return the recorded facts with the results of the cache, which replace older ones."""
    by_cell: dict[tuple[str, ...], dict[str, str]] = {}  # everything but the torch -> torch: error
    newest = {(result.package, result.release, result.variant, result.torch) for result in results}
    for source in recorded:
        torches = {**dict.fromkeys(source.accepted, ""), **source.refused}
        key = _key(asdict(source))
        for torch, error in torches.items():
            if (source.package, source.release, source.variant, torch) not in newest:
                by_cell.setdefault(key, {})[torch] = error
    for result in results:
        by_cell.setdefault(_key(asdict(result)), {})[result.torch] = result.error
    merged = []
    for key, torches in sorted(by_cell.items()):
        package, release, variant, python, compiler, date, files, left_out = key
        by_version = dict(sorted(torches.items(), key=lambda item: version_key(item[0])))
        merged.append(
            ParsedSource(
                package=package,
                release=release,
                variant=variant,
                python=python,
                compiler=compiler,
                date=date,
                files=int(files),
                left_out=int(left_out),
                accepted=tuple(torch for torch, error in by_version.items() if not error),
                refused={torch: error for torch, error in by_version.items() if error},
            )
        )
    return merged


def _key(fields: Mapping[str, object]) -> tuple[str, ...]:
    names = ("package", "release", "variant", "python", "compiler", "date", "files", "left_out")
    return tuple(str(fields[name]) for name in names)


def format_facts(sources: Sequence[ParsedSource]) -> str:
    """Return the text of the file of facts."""
    lines = [
        schema_line(FILE),
        "",
        "# Which torch has headers against which the C++ files of an extension parse: written by",
        "# `python -m tools.syntax.parse_cells --write`. Weaker than a build: docs/how-to/prove-a-wheel.md#parsed.",
    ]
    for source in sources:
        lines += ["", "[[source]]"]
        for name in ("package", "release", "variant", "python", "compiler", "date"):
            lines.append(f"{name} = {json.dumps(getattr(source, name))}")
        lines += [f"files = {source.files}", f"left_out = {source.left_out}"]
        lines.append(f"accepted = {json.dumps(source.accepted)}")
        if source.refused:
            lines.append("[source.refused]")
            for torch, error in source.refused.items():
                lines.append(f"{json.dumps(torch)} = {json.dumps(error)}")
    return "\n".join(lines) + "\n"


def main() -> int:
    """Parse the cells of the command line, or write the results of the cache as facts."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("cells", nargs="*", metavar="CELL", help='"scatter-3.12-cpu"')
    parser.add_argument("--torch", default="", help="releases, with commas between them")
    parser.add_argument("--cache", type=Path, default=CHECKOUT / ".torchmill" / "parsed")
    parser.add_argument("--write", action="store_true", help="write the facts, and parse nothing")
    options = parser.parse_args()
    facts = remembered_facts.load_facts(CHECKOUT)
    if options.write:
        sources = []
        for source in merge_results(facts.parsed, tuple(read_results(options.cache))):
            releases = facts.releases[source.package]
            if any(release.version == source.release for release in releases):
                sources.append(source)  # a release that the facts no longer have proves nothing
        write_atomically(facts.folder / FILE, format_facts(sources))
        return 0
    cells = CellParser(facts, options.cache.resolve())
    results = options.cache / "results"
    results.mkdir(parents=True, exist_ok=True)
    for torch in options.torch.split(","):
        for name in options.cells:
            path = results / f"{name}-{torch}.json"
            if path.exists():
                continue
            try:
                result = cells.parse(name, torch)
            except TorchmillError as error:
                sys.stderr.write(f"{name} against torch {torch}: {error}\n")
                continue
            write_atomically(path, json.dumps(asdict(result), indent=1) + "\n")
            outcome = result.error or f"its C++ files parse ({result.files})"
            sys.stdout.write(f"{name} against torch {torch}: {outcome}\n")
            sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
