"""What a shell completes, in real shells: tasks, options, and the names of builds, of invoke and of nox."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.commands import ROOT, environment

SCRIPT = "invoke --print-completion-script"
SHELLS = {
    "bash": f"source <({SCRIPT}=bash); COMP_WORDS=(invoke %s); "
    "_complete_invoke invoke %s; printf '%%s\\n' ${COMPREPLY[@]}",
    "zsh": f"compctl() {{ :; }}; source <({SCRIPT}=zsh); words=(invoke %s); _complete_invoke; print -l -- $reply # %s",
    "fish": f"source ({SCRIPT}=fish | psub); complete --do-complete 'invoke %s' # %s",
}
NOX = (
    'eval "$(register-python-argcomplete nox)"; COMP_LINE="nox -s wheel-3.1"; COMP_POINT=${#COMP_LINE}; '
    "_python_argcomplete nox; printf '%s\\n' ${COMPREPLY[@]}"
)


def completed(shell: str, script: str, home: Path) -> list[str]:
    """Return what a shell offers; its completions are those of this environment's programs."""
    if shutil.which(shell) is None:
        pytest.skip(f"there is no {shell}")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    env = environment(home, {"TORCHMILL_TAG": "v1.13.1", "PATH": path, "HOME": str(home)})
    done = subprocess.run(
        [shell, "-c", script], cwd=ROOT, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("plan wheel-3.10-c", {"wheel-3.10-cpu", "wheel-3.10-cu117"}),
        ("build wheel-3.10-cpu vision-3.10-cp", {"vision-3.10-cpu"}),
        ("build --dr", {"--dry-run"}),
        ("doc", {"doctor"}),
    ],
)
def test_tasks_options_and_builds_are_completed(
    shell: str, words: str, offered: set[str], tmp_path: Path
) -> None:
    completions = completed(shell, SHELLS[shell] % (words, words.rsplit(maxsplit=1)[-1]), tmp_path)
    assert offered <= {*completions}


def test_sessions_of_nox_are_completed(tmp_path: Path) -> None:
    assert "wheel-3.10-cpu" in completed("bash", NOX, tmp_path)
