"""What torchmill tells the owners of real machines: those of public threads, in benchmarks/data/machines/.

`python -m benchmarks.judge_machines` describes each machine to `invoke ... --host FILE`, asks what its owner would
ask, keeps the answers (`--answers FOLDER`) and prints which of them lack what was expected. The keys of a machine:

- `at`, `date`: the thread, and when the part was written that says what is on the machine; only its facts are here,
  and what a thread leaves out (cores, memory, disk, some drivers) is filled with what such machines usually have.
- `wants`, `truth`, `sure`: what the owner wants, what must be foreseen and what cures it, and who says so.
- `wanted`: "build" (it can be built there), "official" (a published wheel serves), "other" (what was options for cannot
  be had or does not run there, and something near can), "scope" (out of scope, with a way out).
- `ask`: the commands; `says`, `never`: what one of the answers must and none may match, whatever the case.
- `host`: the machine, as `invoke doctor --save FILE` writes one.

An answer that matches can still be a poor one: somebody has to read it. benchmarks/data/machine_verdicts.toml holds
what its reader found, and `--table` prints that as Markdown.
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
_TIMEOUT = 300  # seconds, for one question
_DROPPED = re.compile(
    r"CUDA|TORCH|CMAKE|CC$|CXX$|CFLAGS|CXXFLAGS|LDFLAGS"
)  # variables that would change an answer


@dataclass(frozen=True)
class Machine:
    """A machine of a thread, and what its owner wants."""

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
    files = sorted(folder.glob("*.toml"))
    return [
        Machine(**table)
        for file in files
        for table in tomllib.loads(file.read_text("utf-8"))["machine"]
    ]


def shortcomings(machine: Machine, answers: Sequence[Answer]) -> list[str]:
    """Return what the answers lack of that which was expected, and what they say that must not be said."""
    text = "\n".join(" ".join(answer.text.split()) for answer in answers)
    missing = [
        f"does not say {pattern!r}" for pattern in machine.says if not _matches(pattern, text)
    ]
    forbidden = [f"says {pattern!r}" for pattern in machine.never if _matches(pattern, text)]
    broken = [
        f"`{answer.question}` broke"
        for answer in answers
        if "Traceback (most recent call last)" in answer.text
    ]
    return missing + forbidden + broken


def _matches(pattern: str, text: str) -> bool:
    return re.search(pattern, text, re.IGNORECASE) is not None


def ask(machine: Machine, checkout: Path, invoke: str, folder: Path) -> list[Answer]:
    """Ask the questions of a machine in a checkout; write its description and the answers to `folder`."""
    description = folder / f"{machine.name}.host.toml"
    description.write_text(tomlkit.dumps(machine.host), encoding="utf-8")
    environ = {name: value for name, value in os.environ.items() if not _DROPPED.match(name)}
    answers = []
    for question in machine.ask:
        command = [invoke, *shlex.split(question), "--host", str(description)]
        done = subprocess.run(
            command,
            cwd=checkout,
            env=environ,
            capture_output=True,
            encoding="utf-8",
            timeout=_TIMEOUT,
            check=False,
        )
        answers.append(Answer(question, done.returncode, done.stdout + done.stderr))
    (folder / f"{machine.name}.txt").write_text(_transcript(machine, answers), encoding="utf-8")
    return answers


def _transcript(machine: Machine, answers: Iterable[Answer]) -> str:
    head = f"{machine.name}  {machine.at}\nWANTS: {machine.wants}\nTRUTH ({machine.wanted}): {machine.truth}\n"
    return head + "".join(
        f"\n$ invoke {answer.question}   [{answer.code}]\n{answer.text}\n" for answer in answers
    )


def read_verdicts(file: Path = VERDICTS_FILE) -> Mapping[str, Mapping[str, str]]:
    """Return the verdicts of the rounds on each machine, by its name."""
    return tomllib.loads(file.read_text("utf-8")) if file.is_file() else {}


def verdict_table(machines: Sequence[Machine], verdicts: Mapping[str, Mapping[str, str]]) -> str:
    """Return Markdown: how often each verdict was given in each round, then a line for each machine."""
    rounds = ("first", "second", "last")
    counts = {
        name: Counter(verdicts.get(machine.name, {}).get(name, "") for machine in machines)
        for name in rounds
    }
    lines = ["| verdict | first round | second round | last round |", "|---|---:|---:|---:|"]
    lines += [
        f"| {word} | {' | '.join(str(counts[name][word]) for name in rounds)} |"
        for word in VERDICTS
    ]
    lines += ["", "| thread | question | first | second | last |", "|---|---|---|---|---|"]
    for machine in machines:
        given = verdicts.get(machine.name, {})
        lines.append(
            f"| [{_thread(machine.at)}]({machine.at}) | {given.get('question', machine.name)} | "
            f"{' | '.join(given.get(name, '') for name in rounds)} |"
        )
    return "\n".join(lines)


def _thread(address: str) -> str:
    """Return a short name of a thread's address: "owner/name#12"."""
    parts = address.split("/")
    return f"{parts[3]}/{parts[4]}#{parts[6]}" if "github.com" in address else parts[2]


def main() -> None:
    """Ask for all machines, or those that are named; or print the table of the verdicts."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", help="machines; default: all")
    parser.add_argument("--checkout", type=Path, default=ROOT, help="the torchmill that is options")
    parser.add_argument("--invoke", default="invoke", help="the program that runs its tasks")
    parser.add_argument(
        "--answers", type=Path, default=ROOT / "build/machines", help="where answers are written"
    )
    parser.add_argument(
        "--table", action="store_true", help="print the verdicts as Markdown, and ask nothing"
    )
    options = parser.parse_args()
    machines = [one for one in read_machines() if not options.names or one.name in options.names]
    if options.table:
        print(verdict_table(machines, read_verdicts()))
        return
    options.answers.mkdir(parents=True, exist_ok=True)
    short = 0
    for machine in machines:
        lacking = shortcomings(
            machine, ask(machine, options.checkout, options.invoke, options.answers)
        )
        short += bool(lacking)
        print(f"{machine.name:28} {'; '.join(lacking) or 'as expected'}", flush=True)
    print(f"{len(machines) - short} of {len(machines)} answered as expected")


if __name__ == "__main__":
    main()
