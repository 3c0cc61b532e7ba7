"""Judge what torchmill tells the owners of real machines: those of public threads, in benchmarks/data/machines/.

`python -m benchmarks.judge_machines` passes the description of each machine to `invoke ... --host FILE`, asks what its
owner would ask, saves the answers (`--answers FOLDER`) and prints which of them lack what was expected. The keys of a
machine in the files:

- `at`, `date`: address of the thread, and the date of the part that describes the machine. Only facts are copied;
  what a thread leaves out (cores, memory, disk, some drivers) is filled with what such machines usually have.
- `wants`: what the owner wants; `truth`: the problem that must be foreseen, and its cure; `sure`: who says so.
- `wanted`: "build" (it can be built there), "official" (a published wheel serves), "other" (the wanted build cannot
  be had or does not run there, and a similar one can), "scope" (out of scope, with another way).
- `ask`: the commands; `says`, `never`: patterns of which each must match some answer, or none may, case ignored.
- `host`: the machine, as `invoke doctor --save FILE` writes one.

An answer that matches can still be a poor one, so somebody has to read it. benchmarks/data/machine_verdicts.toml has
the verdicts of such a reader in three rounds, and `--table` prints them as Markdown.
"""

import argparse
import os
import re
import shlex
import subprocess
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomlkit

ROOT = Path(__file__).parents[1]
MACHINES = ROOT / "benchmarks/data/machines"
VERDICTS_FILE = ROOT / "benchmarks/data/machine_verdicts.toml"
VERDICTS = (
    "foreseen and cured",
    "foreseen without a cure",
    "silent",
    "wrong",
    "misleading",
    "out of scope, honest",
    "out of scope, misleading",
)
ROUNDS = ("first", "second", "last")
_TIMEOUT = 300  # seconds, for one question
# Variables of the user that would change an answer.
_DROPPED_VARIABLES = re.compile(r"CUDA|TORCH|CMAKE|CC$|CXX$|CFLAGS|CXXFLAGS|LDFLAGS")


@dataclass(frozen=True)
class Machine:
    """A machine of a thread, and what its owner wants; the module explains the fields."""

    name: str
    at: str
    date: str
    os: str
    wants: str
    truth: str
    sure: str
    wanted: str
    ask: Sequence[str]
    host: Mapping[str, Any]
    says: Sequence[str] = ()
    never: Sequence[str] = ()


@dataclass(frozen=True)
class Answer:
    """What a command printed, on either stream, and its exit code."""

    question: str
    code: int
    text: str


def read_machines(folder: Path = MACHINES) -> list[Machine]:
    """Return the machines of all files in a folder, file by file."""
    machines = []
    for file in sorted(folder.glob("*.toml")):
        tables = tomllib.loads(file.read_text("utf-8"))["machine"]
        machines += [Machine(**table) for table in tables]
    return machines


def shortcomings(machine: Machine, answers: Sequence[Answer]) -> list[str]:
    """Return what the answers lack, what they must not say, and which commands ended in a traceback."""
    # Lines are joined, so that a pattern matches whichever way a sentence is wrapped.
    text = "\n".join(" ".join(answer.text.split()) for answer in answers)
    problems = [f"does not say {pattern!r}" for pattern in machine.says if not _says(text, pattern)]
    problems += [f"says {pattern!r}" for pattern in machine.never if _says(text, pattern)]
    for answer in answers:
        if "Traceback (most recent call last)" in answer.text:
            problems.append(f"`{answer.question}` broke")
    return problems


def _says(text: str, pattern: str) -> bool:
    return re.search(pattern, text, re.IGNORECASE) is not None


def ask(machine: Machine, checkout: Path, invoke: str, folder: Path) -> list[Answer]:
    """Return the answers to a machine's questions, asked in a checkout with the program `invoke`.

    Writes the machine's description and the answers to `folder`.
    """
    description = folder / f"{machine.name}.host.toml"
    description.write_text(tomlkit.dumps(machine.host), encoding="utf-8")
    environ = {}
    for name, value in os.environ.items():
        if not _DROPPED_VARIABLES.match(name):
            environ[name] = value
    answers = []
    for question in machine.ask:
        process = subprocess.run(
            [invoke, *shlex.split(question), "--host", str(description)],
            cwd=checkout,
            env=environ,
            capture_output=True,
            encoding="utf-8",
            timeout=_TIMEOUT,
            check=False,
        )
        answers.append(Answer(question, process.returncode, process.stdout + process.stderr))
    (folder / f"{machine.name}.txt").write_text(_transcript(machine, answers), encoding="utf-8")
    return answers


def _transcript(machine: Machine, answers: Iterable[Answer]) -> str:
    """Return what was asked and answered, for a reader who judges it."""
    parts = [
        f"{machine.name}  {machine.at}\n",
        f"WANTS: {machine.wants}\n",
        f"TRUTH ({machine.wanted}): {machine.truth}\n",
    ]
    for answer in answers:
        parts.append(f"\n$ invoke {answer.question}   [{answer.code}]\n{answer.text}\n")
    return "".join(parts)


def read_verdicts(file: Path = VERDICTS_FILE) -> Mapping[str, Mapping[str, str]]:
    """Return the verdict of each round on each machine, by its name."""
    return tomllib.loads(file.read_text("utf-8")) if file.is_file() else {}


def verdict_table(machines: Sequence[Machine], verdicts: Mapping[str, Mapping[str, str]]) -> str:
    """Return Markdown: how often each verdict was given in each round, then a line for each machine."""
    counts: dict[str, Counter[str]] = {name: Counter() for name in ROUNDS}
    machine_lines = []
    for machine in machines:
        machine_verdicts = verdicts.get(machine.name, {})
        cells = [machine_verdicts.get(name, "") for name in ROUNDS]
        for name, verdict in zip(ROUNDS, cells, strict=True):
            counts[name][verdict] += 1
        question = machine_verdicts.get("question", machine.name)
        thread = f"[{_thread_name(machine.at)}]({machine.at})"
        machine_lines.append(f"| {thread} | {question} | {' | '.join(cells)} |")
    lines = ["| verdict | first round | second round | last round |", "|---|---:|---:|---:|"]
    for verdict in VERDICTS:
        cells = [str(counts[name][verdict]) for name in ROUNDS]
        lines.append(f"| {verdict} | {' | '.join(cells)} |")
    lines += ["", "| thread | question | first | second | last |", "|---|---|---|---|---|"]
    return "\n".join(lines + machine_lines)


def _thread_name(address: str) -> str:
    """Return a short name for a thread's address: "owner/name#12", or its host."""
    parts = address.split("/")
    return f"{parts[3]}/{parts[4]}#{parts[6]}" if "github.com" in address else parts[2]


def main() -> None:
    """Ask the questions of all machines, or of those that are named; or print the table of the verdicts."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", help="machines; default: all")
    parser.add_argument("--checkout", type=Path, default=ROOT, help="the torchmill that is asked")
    parser.add_argument("--invoke", default="invoke", help="the program that runs its tasks")
    parser.add_argument(
        "--answers",
        type=Path,
        default=ROOT / ".torchmill/machines",
        help="where descriptions and answers are written",
    )
    parser.add_argument(
        "--table", action="store_true", help="print the verdicts as Markdown, and ask nothing"
    )
    options = parser.parse_args()
    machines = read_machines()
    if options.names:
        machines = [machine for machine in machines if machine.name in options.names]
    if options.table:
        print(verdict_table(machines, read_verdicts()))
        return
    options.answers.mkdir(parents=True, exist_ok=True)
    as_expected = 0
    for machine in machines:
        answers = ask(machine, options.checkout, options.invoke, options.answers)
        problems = shortcomings(machine, answers)
        as_expected += not problems
        print(f"{machine.name:28} {'; '.join(problems) or 'as expected'}", flush=True)
    print(f"{as_expected} of {len(machines)} answered as expected")


if __name__ == "__main__":
    main()
