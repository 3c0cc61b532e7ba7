"""Run nox and invoke in processes that need not import their modules first.

Of the 0.6 seconds of processor time that `invoke status` takes, the imports are 0.4, and the tests run hundreds of
commands. So a *server* imports the modules once for each worker of pytest and forks a process for each command. In it
the command begins as `python -m` begins it: with its own arguments, variables, streams and atexit functions.

Modules of `torchmill.commands` are not imported before: `command_line` reads the arguments when it is imported.
"""

import atexit
import functools
import gc
import importlib
import json
import os
import pkgutil
import runpy
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

# Variables that the interpreter or the loader reads when a process starts, and never again.
_READ_AT_START = ("PYTHON", "LD_", "LC_", "LANG", "MALLOC_", "GLIBC_")
# coverage.py starts in a process by these, and would not see one that is forked.
_COVERAGE = ("COVERAGE_PROCESS_START", "COVERAGE_PROCESS_CONFIG")
_PRELOADED = ("nox._cli", "nox.sessions", "invoke.main", "torchmill")
_ROOT = Path(__file__).parents[2]
_MAX_REQUEST = 1 << 20  # bytes; Linux lets a command have 128 KiB for one variable


def can_fork(environment: Mapping[str, str]) -> bool:
    """Tell whether a forked process would do the same as a new one with these variables."""
    if sys.platform != "linux" or not os.environ.keys().isdisjoint(_COVERAGE):
        return False
    for name in os.environ.keys() | environment.keys():
        if name.startswith(_READ_AT_START) and os.environ.get(name) != environment.get(name):
            return False
    return True


def run_forked(
    tool: str, arguments: Sequence[str], environment: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    """Run `python -m TOOL ARGUMENTS` in the root of the project, to its end."""
    server = _start_server()
    output, output_end = os.pipe()
    errors, errors_end = os.pipe()
    request = {"tool": tool, "arguments": list(arguments), "environment": dict(environment)}
    socket.send_fds(server, [json.dumps(request).encode()], [output_end, errors_end])
    os.close(output_end)
    os.close(errors_end)
    # Both at the same time, because the command waits while a pipe is full.
    with ThreadPoolExecutor(max_workers=1) as pool:
        error_text = pool.submit(_read_to_end, errors)
        output_text = _read_to_end(output)
    exit_code = server.recv(64)
    assert exit_code, f"the server has ended; `python -m {__name__} 0` may tell why"
    command = [sys.executable, "-m", tool, *arguments]
    return subprocess.CompletedProcess(command, int(exit_code), output_text, error_text.result())


def _read_to_end(descriptor: int) -> str:
    """Return the text that a pipe brings until every process has closed its other end."""
    with os.fdopen(descriptor) as stream:
        return stream.read()


@functools.cache
def _start_server() -> socket.socket:
    """Start the server of this process, and return the socket for requests.

    The server ends with the socket, so also if this process is killed.
    """
    requests, server_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with server_end:
        server = subprocess.Popen(
            [sys.executable, "-m", __name__, str(server_end.fileno())],
            cwd=_ROOT,
            stdin=subprocess.DEVNULL,
            # Pipes, as a command gets them: Python looks once whether it can seek in a stream.
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=[server_end.fileno()],
        )
        server.wait()  # it has forked the server, and would stay a zombie among the worker's children

    def end() -> None:
        requests.close()
        server.communicate()

    atexit.register(end)
    return requests


def _serve(requests: socket.socket) -> dict[str, Any]:
    """Fork for each request until there are no more; return a request in the process that is to answer it."""
    while True:
        message, descriptors, _, _ = socket.recv_fds(requests, _MAX_REQUEST, 2)
        if not message:
            os._exit(0)  # without the atexit functions of what was imported for the commands
        child = os.fork()
        if child == 0:
            requests.close()
            for stream, descriptor in enumerate(descriptors, 1):
                os.dup2(descriptor, stream)
                os.close(descriptor)
            request: dict[str, Any] = json.loads(message)
            return request
        for descriptor in descriptors:
            os.close(descriptor)
        _, status = os.waitpid(child, 0)
        requests.send(str(os.waitstatus_to_exitcode(status)).encode())


def _import_modules() -> None:
    """Import what commands may import, but no module that looks at the arguments meanwhile."""
    for name in _PRELOADED:
        importlib.import_module(name)
    import torchmill

    for module in pkgutil.walk_packages(torchmill.__path__, "torchmill."):
        if not module.name.startswith("torchmill.commands"):
            importlib.import_module(module.name)


def main() -> None:
    """Serve the socket whose number is the only argument."""
    if os.fork():
        os._exit(
            0
        )  # the server is not a child of pytest's worker: tests look at the worker's children
    requests = socket.socket(fileno=int(sys.argv[1]))
    _import_modules()
    gc.freeze()  # or each process would look through all modules for garbage, and copy their pages for that
    request = _serve(requests)
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.argv = ["-m", *request["arguments"]]
    runpy.run_module(request["tool"], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
