"""What a build writes, part by part: by this machine's own builds, else by the recorded ones."""

from collections.abc import Iterable, Mapping, Sequence

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from torchmill import estimate, overflow
from torchmill.estimate import catalogue
from torchmill.model import Assumed, Facts, Plan, Range, Run

PARTS = ("tree", "kit", "environment", "cache")

_OWN = Range(0.95, 1.1)  # of what the same build took on this machine: another Python differs by so much


def needs(facts: Facts, plan: Plan, own: Sequence[Run] = ()) -> Mapping[str, Range] | None:
    """Return the bytes that each part of a build takes.

    The tree counts with all that is made of it; the cache is the compiler cache with the kept members.
    `own` are builds of this machine. None where nothing is known.
    """
    expected = estimate.of(facts, plan)
    if expected is None or facts.assumed is None:
        return None
    images = overflow.images(plan.set.get("TORCH_CUDA_ARCH_LIST", "")) if plan.build.cuda else 0
    same = [
        run
        for run in own
        if (run.package, run.release) == (plan.release.package, plan.release.version)
        and overflow.images(run.capabilities) == images
    ]
    wheel = expected.wheel
    tree = _measured(run.tree for run in same)
    environment = _measured(run.environment for run in same)
    return {
        "tree": tree or Range(expected.tree.low + wheel.low, expected.tree.high + wheel.high),
        "kit": _installed(facts.assumed, plan.kit),
        "environment": environment or _environment(facts, facts.assumed, plan),
        "cache": _cached(facts, facts.assumed, plan, wheel),
    }


def _measured(sizes: Iterable[int | None]) -> Range | None:
    """Return the range of what was measured, a little wider; None where nothing was."""
    known = [size for size in sizes if size]
    return Range(min(known) * _OWN.low, max(known) * _OWN.high) if known else None


def _installed(assumed: Assumed, requirements: Iterable[str]) -> Range:
    """Return the bytes that requirements take."""
    names = [canonicalize_name(Requirement(line).name) for line in requirements]
    size = sum(assumed.installed.get(name, assumed.installed.get("other", 0)) for name in names)
    return Range(size / assumed.installed_spread, size * assumed.installed_spread)


def _environment(facts: Facts, assumed: Assumed, plan: Plan) -> Range:
    """Return the bytes of the session's environment; that of a dependent package holds the one it is for."""
    wheels = [line for line in plan.requirements if line.endswith(".whl")]
    base = facts.packages[plan.release.package].after
    projects = [line for line in plan.requirements if line not in wheels and not line.startswith(f"{base}==")]
    found = _installed(assumed, (*projects, "venv"))
    release = catalogue.find(facts, base, plan.release.torch or "") if base else None
    libraries = (catalogue.host_size(facts, release) if release else None) or 0
    # its headers, and device code where there is any, come on top of the libraries
    return Range(found.low + libraries / assumed.installed_spread, found.high + libraries * assumed.tree.low)


def _cached(facts: Facts, assumed: Assumed, plan: Plan, wheel: Range) -> Range:
    """Return what the caches take in: nothing where all is there already, else every object and member."""
    libraries = catalogue.host_size(facts, plan.release) or 0
    images = max(wheel.high / assumed.packed.high, libraries)
    return Range(assumed.cached.low * libraries, assumed.cached.high * images + wheel.high)
