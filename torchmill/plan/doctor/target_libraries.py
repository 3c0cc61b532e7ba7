"""Check what a wheel finds on the machine that it is for: a torch, and libraries of CUDA.

Both may lack code for the GPUs that the wheel itself has code for. A board is a Jetson.
"""

from collections.abc import Iterator

from packaging.version import Version

from torchmill.config.arch_list import listed_capabilities
from torchmill.config.gpu import Capability
from torchmill.config.release_lookup import find_release
from torchmill.config.wheel_code import WheelCode
from torchmill.plan.crossing import FIRST_UNIFIED_CUDA
from torchmill.plan.doctor.finding import CheckContext, Finding
from torchmill.plan.doctor.gpu_driver import loader_path_without
from torchmill.plan.providers import board_kind
from torchmill.plan.published import published_wheels
from torchmill.plan.wheel_fit import has_own_code

_BOARD_LIBRARIES = "libraries of the board"
_LOADER_PATH = "loader's path"
_TORCH_THERE = "torch where it runs"
# Before it, CUDA for aarch64 was that of boards alone.
_FIRST_SERVER_CUDA = Version("11.0")


def check_target_libraries(context: CheckContext) -> Iterator[Finding]:
    """Yield the findings on what a wheel with code for GPUs finds where it runs."""
    listed = listed_capabilities(context.facts, context.plan.arch_list)
    if context.toolkit is None or not listed:
        return
    yield from _check_board_cuda(context, listed)
    yield from _check_torch_of_pypi(context, listed)


def check_loader_path(context: CheckContext) -> Iterator[Finding]:
    """Yield a finding for each folder of LD_LIBRARY_PATH with libraries of which the wheel has others.

    The toolkit of the build is no such folder. For a build without CUDA, libraries of CUDA do not
    count: its wheel loads none of them.
    """
    toolkits = context.host.toolkits
    home = toolkits.homes.get(context.plan.cuda.toolkit or "")
    names_by_folder: dict[str, list[str]] = {}
    for name, folder in toolkits.loader_libraries.items():
        is_of_cuda = not name.startswith(("libstdc++", "libmkl"))
        is_of_build = home is not None and f"{folder}/".startswith(f"{home}/")
        if not is_of_build and (context.toolkit is not None or not is_of_cuda):
            names_by_folder.setdefault(folder, []).append(name)
    for folder, names in names_by_folder.items():
        yield Finding(
            _LOADER_PATH,
            f"{', '.join(sorted(names))} in {folder}",
            "those that the wheel was built with",
            "warning",
            cure=loader_path_without(folder),
            because="LD_LIBRARY_PATH puts them before those of the wheel and of the system: if they "
            "are of another release, the wheel does not load, or fails as it runs",
        )


def _check_board_cuda(context: CheckContext, listed: list[Capability]) -> Iterator[Finding]:
    """Yield a finding if a wheel for a board is built with the libraries of Arm servers.

    A crossed build is refused for that; in a container, an image with the board's CUDA will do.
    """
    toolkit = context.toolkit
    kind = board_kind(context.host)
    if toolkit is None or context.build.arch != "aarch64" or kind == "own-cuda":
        return
    if not _FIRST_SERVER_CUDA <= Version(toolkit.version) < FIRST_UNIFIED_CUDA:
        return
    boards = [capability for capability in listed if capability.tegra and capability.gpus]
    if not boards:
        return
    names = ", ".join(capability.name for capability in boards)
    advice = "build on the board, or in a container with NVIDIA's image of its JetPack"
    if kind == "server-cuda":
        advice = f"build for CUDA {FIRST_UNIFIED_CUDA} or newer"
    because = (
        f"code for {names} ({boards[0].gpus[0]}) runs with the CUDA {toolkit.version} of a JetPack, "
        f"and the libraries of Arm servers may not work there: {advice}"
    )
    state = f"CUDA {toolkit.version} of servers"
    yield Finding(_BOARD_LIBRARIES, state, "that of the JetPack", "warning", because=because)


def _check_torch_of_pypi(context: CheckContext, listed: list[Capability]) -> Iterator[Finding]:
    """Yield a finding if the torch on PyPI, for which an extension is built, lacks code for GPUs.

    Only wheels whose code was read are judged. A torch that the user names is not.
    """
    after = context.package.after
    torch = (context.plan.wheel.torch or "").partition("==")[2]
    pin = f"{after}==={torch}"
    if after is None or pin not in {context.plan.target_torch, *context.plan.requirements}:
        return
    if context.plan.is_crossed and context.plan.target_torch != pin:
        return
    release = find_release(context.facts, after, torch)
    readings: list[WheelCode] = []
    for wheel in published_wheels(context.facts, release, context.build.arch):
        if not wheel.index:
            readings.extend(wheel.readings)
    if not readings:
        return
    unserved = []
    for capability in listed:
        if not any(has_own_code(context.facts, reading, capability) for reading in readings):
            unserved.append(capability.name)
    if not unserved:
        return
    names = ";".join(unserved)
    because = (
        f"PyPI's torch for {context.build.arch} has no code for {names}: where the wheel runs, it "
        f"needs a torch {torch} that has, such as one that was built there"
    )
    yield Finding(_TORCH_THERE, f"{torch} of PyPI", f"one for {names}", "warning", because=because)
