"""The bytes that each part of a build takes on disk, estimated before it is built.

The base of a dependent package, such as torchvision, is the torch that it is compiled against.
"""

from collections.abc import Iterable, Mapping, Sequence

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from torchmill.config.costs import CostAssumptions, CostRange, MeasuredRun
from torchmill.config.facts import Facts
from torchmill.plan.compile_work import find_release_version, host_library_bytes
from torchmill.plan.estimate import estimate_build, runs_of_same_build
from torchmill.plan.plan import Plan

# The key of `assumed.installed` for torch with CUDA from PyPI and everything that it requires.
_TORCH_WITH_CUDA = "torch with CUDA"
# Factors on the bytes that the same build took on this machine: so much they differ for another
# Python.
_OWN_SPREAD = CostRange(0.95, 1.1)


def storage_needs(
    facts: Facts, plan: Plan, own_runs: Sequence[MeasuredRun] = ()
) -> Mapping[str, CostRange] | None:
    """Return the bytes that each part of a build takes; None if no sizes are assumed.

    The parts are

    - "tree": the source tree and everything that is compiled in it
    - "kit": the tools that all interpreters share
    - "environment": the environment of one interpreter
    - "trial": the clean environment in which the wheel is verified
    - "cache": the caches of compilers and of wheel members, if an estimate knows the sizes

    `own_runs` are builds that this machine has made. If the same build is among them, its measured
    bytes count, not the estimate.
    """
    assumed = facts.costs.assumptions
    if assumed is None:
        return None
    estimate = estimate_build(facts, plan)
    if estimate:
        estimated_tree = estimate.tree + estimate.wheel
    else:
        usual = facts.packages[plan.release.package].setup.disk
        estimated_tree = CostRange(usual, usual)
    same_builds = runs_of_same_build(plan, own_runs)
    tree = _measured_range(run.tree for run in same_builds)
    environment = _measured_range(run.environment for run in same_builds)
    torch = _installed_torch_bytes(facts, assumed, plan)
    parts = {
        "tree": tree or estimated_tree,
        "kit": _installed_bytes(assumed, plan.tree.kit),
        "environment": environment or _environment_bytes(facts, assumed, plan),
        "trial": _installed_bytes(assumed, ["venv"]) + torch,
    }
    if estimate:
        parts["cache"] = _cache_bytes(facts, assumed, plan, estimate.wheel)
    return parts


def _measured_range(sizes: Iterable[int | None]) -> CostRange | None:
    """Return the range of measured sizes, a little wider; None if none was measured."""
    measured = [size for size in sizes if size]
    if not measured:
        return None
    return CostRange(min(measured) * _OWN_SPREAD.low, max(measured) * _OWN_SPREAD.high)


def _installed_bytes(assumed: CostAssumptions, requirements: Iterable[str]) -> CostRange:
    """Return the bytes of installed requirements, with everything that comes along with them."""
    other = assumed.installed.get("other", 0)
    size = 0
    for requirement in requirements:
        project = canonicalize_name(Requirement(requirement).name)
        size += assumed.installed.get(project, other)
    return _spread_installed(assumed, size)


def _spread_installed(assumed: CostAssumptions, size: float) -> CostRange:
    """Return the range for assumed bytes of something installed: releases of a project differ."""
    return CostRange(size / assumed.installed_spread, size * assumed.installed_spread)


def _environment_bytes(facts: Facts, assumed: CostAssumptions, plan: Plan) -> CostRange:
    """Return the bytes of one interpreter's environment, in which the wheel is built.

    The environment of a dependent package also contains its base.
    """
    base = facts.packages[plan.release.package].after
    projects = ["venv"]
    for requirement in plan.requirements:
        # The base is a wheel file, or pinned to one version; its bytes are counted below.
        is_base = requirement.endswith(".whl") or requirement.startswith(f"{base}==")
        if not is_base:
            projects.append(requirement)
    tools = _installed_bytes(assumed, projects)
    if base is None:
        return tools
    return tools + _installed_torch_bytes(facts, assumed, plan)


def _installed_torch_bytes(facts: Facts, assumed: CostAssumptions, plan: Plan) -> CostRange:
    """Return the bytes of the torch that is installed to verify a wheel.

    This is the base of a dependent package, and for torch the built wheel itself.
    """
    base = facts.packages[plan.release.package].after
    release = plan.release
    from_pypi = False
    if base:
        base_release = find_release_version(facts, base, plan.release.torch or "")
        if base_release is None:
            return CostRange(0, 0)
        release = base_release
        # A version without a local label is not one of our wheels.
        from_pypi = "+" not in (plan.wheel.torch or "") and plan.build.arch == "x86_64"
    if plan.cuda.toolkit or (from_pypi and release.cuda.pypi):
        return _spread_installed(assumed, assumed.installed.get(_TORCH_WITH_CUDA, 0))
    libraries = host_library_bytes(facts, release) or 0
    # Headers come on top of the libraries. A tree contains them, too, beside the libraries, so its
    # lower bound is an upper bound here.
    return CostRange(libraries / assumed.installed_spread, libraries * assumed.tree.low)


def _cache_bytes(facts: Facts, assumed: CostAssumptions, plan: Plan, wheel: CostRange) -> CostRange:
    """Return the bytes by which the caches of compilers and of wheel members grow.

    At worst, that is by every object of the build and every member of the wheel. `wheel` are the
    estimated bytes of the wheel.
    """
    host_libraries = host_library_bytes(facts, plan.release) or 0
    # The wheel's bytes were estimated as the bytes of all its libraries times `assumed.packed`.
    all_libraries = max(wheel.high / assumed.packed.high, host_libraries)
    return CostRange(
        assumed.cached.low * host_libraries, assumed.cached.high * all_libraries + wheel.high
    )
