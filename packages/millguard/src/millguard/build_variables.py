"""Decide which variables tell a build how many compilers to start.

A guard can only let those compilers run that a build starts: a build with one job leaves it no
choice. So each tool is told to start as many compilers as there are processors, by the variable that
it reads. A variable that the user has set stays as it is, and a message names it if it keeps
processors idle.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

# Variables with a number of jobs, and the programs that read them.
JOB_VARIABLES = {
    # torch.utils.cpp_extension hands it to ninja as -j:
    # https://docs.pytorch.org/docs/stable/cpp_extension.html
    "MAX_JOBS": "extensions of torch",
    # https://cmake.org/cmake/help/latest/envvar/CMAKE_BUILD_PARALLEL_LEVEL.html
    "CMAKE_BUILD_PARALLEL_LEVEL": "cmake --build",
    # https://doc.rust-lang.org/cargo/reference/environment-variables.html
    "CARGO_BUILD_JOBS": "cargo",
}
# nvcc --threads compiles a file for several GPUs at a time, each with the memory of one. Extensions
# such as flash-attn and vllm set it to several unless this variable says otherwise. The guard fits
# more into the memory if the pieces are small.
NVCC_THREADS = "NVCC_THREADS"
# make gets a number of jobs, and not the guard's jobserver (see `jobserver`): a make that is run with
# -j prints that it leaves a jobserver, and ninja prints that it uses one. The output of the command
# should be the same as without a guard.
MAKE_FLAGS = "MAKEFLAGS"


@dataclass(frozen=True, slots=True)
class BuildVariables:
    """The variables that a build gets, and what the user should know about those that it keeps."""

    added: dict[str, str] = field(default_factory=dict)
    messages: tuple[str, ...] = ()


def choose_variables(environ: Mapping[str, str], jobs: int) -> BuildVariables:
    """Return the variables for a build that may run `jobs` compilers at a time."""
    added: dict[str, str] = {}
    messages = []
    for name, reader in JOB_VARIABLES.items():
        users_jobs = environ.get(name, "").strip()
        if not users_jobs:
            added[name] = str(jobs)
        elif users_jobs.isdecimal() and int(users_jobs) < jobs:
            messages.append(
                f"{name} is {users_jobs}, so {reader} will start at most {users_jobs} of {jobs} compilers "
                f"at a time: `unset {name}` lets the guard decide"
            )
    if not environ.get(NVCC_THREADS, "").strip():
        added[NVCC_THREADS] = "1"
    if not environ.get(MAKE_FLAGS, "").strip():
        added[MAKE_FLAGS] = f"-j{jobs}"
    return BuildVariables(added, tuple(messages))
