"""The facts of a machine that a diagnosis uses, as its description or a measurement has them."""

from collections.abc import Iterator

from torchmill.host.host import Host
from torchmill.plan.diagnosis.situation import Fact, Origin
from torchmill.plan.plan import Plan

# The family of a compiler -> the fact with its version.
COMPILER_FACTS = {"gcc": "gcc", "clang": "clang", "apple-clang": "clang", "msvc": "msvc"}


def host_facts(host: Host, origin: Origin) -> Iterator[Fact]:
    """Yield the facts of a machine, of its first GPU, and of its toolkit if it has only one."""
    values: dict[str, str | None] = {
        "system": host.system,
        "arch": host.arch,
        "glibc": host.platform.glibc,
        "driver": host.gpus.running_driver,
        "cmake": host.programs.versions.get("cmake"),
    }
    distribution = host.platform.distribution
    if distribution is not None:
        values["distribution"] = f"{distribution.id} {distribution.version}".strip()
        if distribution.l4t:
            values["jetson"] = "a Jetson"
    compiler = host.compilers.default
    if compiler is not None:
        values[COMPILER_FACTS[compiler.family]] = compiler.version
    # Which of several toolkits a build takes, the machine alone does not say.
    if len(host.toolkits.homes) == 1:
        values["cuda"] = next(iter(host.toolkits.homes))
    if host.gpus.devices:
        gpu = host.gpus.devices[0]
        values["gpu"] = gpu.name
        values["gpu_capability"] = gpu.capability
    if host.packages.manager == "conda":
        values["conda"] = "conda"
    for name, value in values.items():
        if value:
            yield Fact(name, value, origin)


def session_facts(plan: Plan, host: Host) -> Iterator[Fact]:
    """Yield the facts of a session: those of its plan before those of its machine."""
    values: dict[str, str | None] = {
        "suite": "torchmill",
        "builds": "torch" if plan.release.torch is None else "an extension",
        "torch": plan.release.torch_version,
        "python": plan.build.python.rstrip("t"),
        "cuda": plan.cuda.toolkit,
        "arch_list": plan.arch_list,
    }
    compiler = host.compilers.of_command(plan.variables.get("CXX", ""))
    if compiler is not None:
        values[COMPILER_FACTS[compiler.family]] = compiler.version
    for name, value in values.items():
        if value:
            yield Fact(name, value, "session")
    for fact in host_facts(host, "host"):
        # The plan says which compiler and toolkit of several the build takes.
        if fact.name not in values:
            yield fact
