"""Run the programs that repair needs: ldconfig and patchelf."""

import errno
import shlex
import signal
import subprocess
from collections.abc import Sequence

from millpress.errors import CommandFailedError, ToolError

SHOWN_CHARACTERS = 200  # of a command, in a message
TIMEOUT_SECONDS = 1800.0  # patchelf writes a library of gigabytes anew
# Errors of a program that is missing, lacks its loader, is not executable, or is for another machine.
_NOT_INSTALLED = {errno.ENOENT, errno.EACCES, errno.ENOEXEC}


def run_program(argv: Sequence[str]) -> str:
    """Return what a program writes to stdout.

    Raises CommandFailedError if it ends with a nonzero exit code, ToolError if it cannot be started
    or has not ended after half an hour.
    """
    command = shlex.join(argv)
    if len(command) > SHOWN_CHARACTERS:
        command = f"{command[:SHOWN_CHARACTERS]} …"
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,  # a program that asks something would wait for ever
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
        if error.errno in _NOT_INSTALLED:
            advice = "install it for this machine"
        else:  # too long a command, or too little memory
            advice = "run it by hand to see more"
        raise ToolError(
            f"`{argv[0]}` cannot be run here ({error.strerror}): {advice}",
            code="program-not-runnable",
        ) from None
    if done.returncode != 0:
        output = done.stdout + done.stderr
        # most programs give the reason in their last line
        lines = [line.strip() for line in output.splitlines() if line.strip()]
        last = lines[-1] if lines else "it printed nothing"
        raise CommandFailedError(
            f"`{command}` {_describe_end(done.returncode)}: {last}", code="command-failed"
        )
    return done.stdout


def _describe_end(returncode: int) -> str:
    """Return how a program ended, as a clause: its exit code, or the signal that killed it."""
    if returncode >= 0:
        return f"ended with exit code {returncode}"
    try:
        return f"was killed by {signal.Signals(-returncode).name}"
    except ValueError:  # a real-time signal has no name
        return f"was killed by signal {-returncode}"
