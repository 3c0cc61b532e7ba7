"""The names of all tasks by stage of the work, each with a line about it.

Messages name tasks. They read the names here, because to import the tasks themselves takes long.
"""

from collections.abc import Mapping

STAGES: Mapping[str, Mapping[str, str]] = {
    "source": {
        "fetch": "Fetch a release, verify its commit, and select it.",
        "deps": "Install the system packages that the selected release needs.",
        "toolkit": "List or install CUDA toolkits, libraries, compilers, without root.",
        "facts": "Say what build_configs/ holds, compare it with PyPI, draft releases.",
        "add": "Draft the facts about a package that has none, and try them.",
    },
    "plan": {
        "matrix": "Print the Pythons and toolkits of a release, and why no others.",
        "explain": "Tell if a build is possible and who tried it; else name one that is.",
        "plan": "Print what a session would do and cost; with --all, every detail.",
        "arch": "Say which GPUs, toolkits and releases match compute capabilities.",
        "doctor": "Examine this machine, for a build or in general; say what fixes it.",
        "jobs": "Show the limits of memory and processors, and how a build uses them.",
        "shards": "Say how long a build takes on 1 to 64 machines, and what that costs.",
    },
    "build": {
        "build": "Build wheels from start to finish, with all that they need.",
        "cluster": "Write jobs that share one build among machines, as for Slurm.",
        "bisect": "Find the commit that changed behaviour, by builds and a command.",
        "rebuild": "Build a wheel again from its records, and say if it is the same.",
        "diagnose": "Say from its log why a build failed, and what fixes it.",
        "report": "Show a build's memory, time and failure as a page or a picture.",
    },
    "deliver": {
        "verify": "Check that wheels agree with their manifests, statements and SBOMs.",
        "slim": "Remove from wheels the GPU code that your GPUs do not run.",
        "index": "Write a static package index of the wheels in dist/.",
        "snippet": "Print what a project needs to use the wheels, for uv, pip, others.",
        "image": "Write a Dockerfile: a builder, a runtime, a dev container; build it.",
        "publish": "Publish verified wheels to the place that --to names.",
    },
    "care": {
        "status": "Show what is stored where, how big it is, and what uses it.",
        "clean": "Remove what can be made again; never what is in use.",
    },
}
TASK_LINES: dict[str, str] = {}  # task -> the line about it, of all stages
for _tasks in STAGES.values():
    TASK_LINES.update(_tasks)
_NAME_COLUMNS = max(map(len, TASK_LINES)) + 2
_FIRST_COMMANDS = {
    "invoke build wheel-3.12-cpu": "all that a wheel needs; asks before it begins",
    "nox -l": "list the sessions, one for each wheel",
    "nox -s wheel-3.12-cpu": "build that wheel",
    "nox -s demo": "build a small sample, in a minute",
}


def list_tasks() -> str:
    """Return the text of `invoke --list`: all tasks by stage, and commands to begin with."""
    lines = [
        "Tasks, by stage. Run one with `invoke TASK`; `invoke TASK --help` explains its options."
    ]
    for stage, tasks in STAGES.items():
        lines += ["", f"{stage}:"]
        for task, line in tasks.items():
            lines.append(f"  {task:{_NAME_COLUMNS}}{line}")
    lines += ["", "Begin with one of these commands; each wheel has a session of nox:"]
    for command, meaning in _FIRST_COMMANDS.items():
        lines += [f"  {command}", f"      {meaning}"]
    return "\n".join(lines)
