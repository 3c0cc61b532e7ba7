"""The plan of one build: all that will happen, computed before anything is touched."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torchmill.config.build import SPEED_ONLY_SWITCHES, Build
from torchmill.config.field_types import no_entries
from torchmill.config.package import Package
from torchmill.config.release import Release
from torchmill.plan.exposure import Exposure
from torchmill.plan.published_wheel import PublishedWheel
from torchmill.wheel.planned_wheel import PlannedWheel


@dataclass(frozen=True, slots=True)
class Command:
    """One program to run; ${…} in an argument stands for a path that only the machine knows."""

    title: str
    argv: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SourceName:
    """What a wheel and its documents call the source that it is built from."""

    # The commit that the source is proven to be. Before anything is fetched, the commit that git
    # would bring.
    commit: str | None
    label: str  # what `--label git` appends to versions: "git49444c3"; "" if no commit is known
    git_version: str | None  # for the wheel's version module; None: what upstream writes there
    title: str  # for people: "commit 49444c3e"


@dataclass(frozen=True, slots=True)
class PlannedTree:
    """How a source tree is prepared, for every interpreter that it serves."""

    kit: tuple[str, ...] = ()  # requirements that serve every interpreter: CMake, ninja
    patches: tuple[str, ...] = ()  # names below build_configs/patches, in their order
    # The user's patches: their names, which are in `patches` too, -> their paths.
    user_patches: Mapping[str, str] = no_entries()
    preparation: tuple[Command, ...] = ()  # run once in the fresh tree
    required_folders: tuple[str, ...] = ()  # folders of the source that may not be empty


@dataclass(frozen=True, slots=True)
class PlannedCuda:
    """The toolkit that compiles a build, and the libraries beside it."""

    toolkit: str | None = None  # "11.8"; None: a build without CUDA
    # The libraries that `invoke toolkit` fetches for the build, by their names.
    libraries: Mapping[str, str] = no_entries()  # "cudnn" -> its version, "8.5.0.96"
    provisioned: Mapping[str, str] = no_entries()  # "cudnn" -> its folder, "cudnn-8.5.0.96-cu11"


@dataclass(frozen=True, slots=True)
class Shortfall:
    """A part of the official wheel that ours will not have."""

    part: str
    cost: str  # of being without the part; of a difference on purpose, its reason
    cure: str  # how to bring the part; "" of a difference on purpose

    def __str__(self) -> str:
        """Return it as a sentence without its full stop."""
        text = f"{self.part} ({self.cost})"
        return f"{text}: {self.cure}" if self.cure else text


@dataclass(frozen=True, slots=True)
class OfficialComparison:
    """How the planned wheel compares with upstream's."""

    shortfalls: tuple[Shortfall, ...] = ()  # parts of the official wheel that ours will not have
    differences: tuple[Shortfall, ...] = ()  # on purpose
    published: PublishedWheel | None = None  # the nearest wheel, whether it would do or not


@dataclass(frozen=True, slots=True)
class Plan:
    """All that will happen for one build, computed without touching anything."""

    identifier: str  # of the session: "wheel-3.10-cpu"
    wheel: PlannedWheel
    source: SourceName
    tree: PlannedTree
    cuda: PlannedCuda
    variables: Mapping[str, str]  # that the build sets
    # Patterns of the variables that the build sees of the user's shell; it sees no others.
    shell_patterns: tuple[str, ...]
    requirements: tuple[str, ...]  # of the environment of one interpreter
    commands: tuple[Command, ...]  # that compile the wheel
    jobs: int  # compilers at a time without the memory guard
    reasons: tuple[str, ...] = ()  # of the rules that shaped the plan
    official: OfficialComparison = field(default_factory=OfficialComparison)
    # The requirement by which pip installs the torch of the machine that a build is crossed for:
    # "torch===2.13.0". None if it is not crossed.
    target_torch: str | None = None
    # The known vulnerabilities of the package, and whether the wheel has them: the gravest first.
    vulnerabilities: tuple[Exposure, ...] = ()

    @property
    def is_crossed(self) -> bool:
        """Tell whether cross compilers make the wheel, on a machine of another arch."""
        return self.target_torch is not None

    @property
    def build(self) -> Build:
        """Return the cell that is built."""
        return self.wheel.build

    @property
    def release(self) -> Release:
        """Return the release that is built."""
        return self.wheel.release

    @property
    def fixed_vulnerabilities(self) -> tuple[str, ...]:
        """Return the identifiers of the known vulnerabilities that proven patches fix."""
        fixed = [exposure for exposure in self.vulnerabilities if exposure.is_fixed]
        return tuple(exposure.vulnerability.id for exposure in fixed)

    @property
    def switches(self) -> dict[str, str]:
        """Return the variables that change the build's result, and not only its speed."""
        return {
            name: value for name, value in self.variables.items() if name not in SPEED_ONLY_SWITCHES
        }

    @property
    def arch_list(self) -> str:
        """Return the compute capabilities of the wheel, "8.0;8.6+PTX".

        "" leaves them to the build.
        """
        return self.variables.get("TORCH_CUDA_ARCH_LIST", "")


def expected_values(plan: Plan, package: Package) -> dict[str, object]:
    """Return the values that the scripts in checks/ compare a finished wheel with.

    Their keys are those of the scripts.
    """
    return {
        "package": package.name,
        "import": package.import_name,
        "version": plan.wheel.version,
        "git_version": plan.source.git_version,
        "cuda": plan.cuda.toolkit or plan.build.cuda,
        "capabilities": plan.variables.get("TORCH_CUDA_ARCH_LIST"),
        "libraries": dict(plan.cuda.libraries),
        "switches": dict(plan.variables),  # the scripts pick the switches among them
        "base": plan.wheel.torch,
        "fixed": list(plan.fixed_vulnerabilities),
        "smoke": list(package.checks.smoke),
    }
