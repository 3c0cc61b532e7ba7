"""Run the programs that repair needs: ldconfig and patchelf."""

import errno
import shlex
import signal
import subprocess
from collections.abc import Sequence

from millpress.errors import CommandFailedError, ToolError

SHOWN_CHARACTERS = 200  # of a command, in a message
TIMEOUT_SECONDS = 1800.0  # patchelf rewrites libraries of several gigabytes
# The program or its loader is missing, it is not executable, or it is for another machine.
_UNUSABLE_PROGRAM = {errno.ENOENT, errno.EACCES, errno.ENOEXEC}


def run_program(argv: Sequence[str]) -> str:
    """Return what a program writes to stdout, as text; its input is empty.

    Raises CommandFailedError, with the last line of its output, if it fails. Raises ToolError if it
    cannot be started, or is still running after TIMEOUT_SECONDS and is killed.
    """
    command = shlex.join(argv)
    if len(command) > SHOWN_CHARACTERS:
        command = f"{command[:SHOWN_CHARACTERS]} …"
    try:
        process = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,  # a program that waits for an answer would hang
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=TIMEOUT_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ToolError(
            f"`{command}` has not ended after {TIMEOUT_SECONDS:g} s, and was stopped: "
            "run it by hand to see what it waits for",
            code="program-hangs",
        ) from None
    except OSError as error:
        if error.errno in _UNUSABLE_PROGRAM:
            advice = "install it for this machine"
        else:  # the command is too long, or memory is short
            advice = "run it by hand to see more"
        raise ToolError(
            f"`{argv[0]}` cannot be run here ({error.strerror}): {advice}",
            code="program-not-runnable",
        ) from None
    if process.returncode != 0:
        # The reason is usually the last line of stderr, or of stdout if stderr is empty.
        output = process.stdout + process.stderr
        lines = [line.strip() for line in output.splitlines() if line.strip()]
        reason = lines[-1] if lines else "it printed nothing"
        raise CommandFailedError(
            f"`{command}` {_describe_end(process.returncode)}: {reason}", code="command-failed"
        )
    return process.stdout


def _describe_end(returncode: int) -> str:
    """Return how a program ended, as a clause: its exit code, or the signal that killed it.

    subprocess gives the number of a signal as a negative exit code.
    """
    if returncode >= 0:
        return f"ended with exit code {returncode}"
    try:
        return f"was killed by {signal.Signals(-returncode).name}"
    except ValueError:  # a real-time signal has no name
        return f"was killed by signal {-returncode}"
