"""Judge a list of compute capabilities: does the toolkit make code for it, can the release read it."""

from collections.abc import Iterable, Iterator, Sequence

from torchmill.capabilities.targets import Target, code_runs, is_chip, number, plain, ptx_runs
from torchmill.matrix import Terms, bounds
from torchmill.model import Facts, Release, Toolkit
from torchmill.rules import within


def span(toolkits: Sequence[Toolkit]) -> str:
    """Return "11.8", or "11.1 to 13.3"."""
    first, last = toolkits[0].version, toolkits[-1].version
    return first if first == last else f"{first} to {last}"


def makers(facts: Facts, name: str) -> list[Toolkit]:
    """Return the toolkits that make code for a target, oldest first."""
    return [one for one in facts.toolkits if name in one.capabilities]


def builds_with(facts: Facts, release: Release, toolkit: Toolkit) -> bool:
    """Tell whether any build of a release with a toolkit is possible."""
    terms = Terms.of(facts, release)
    return any(
        build.cuda == toolkit.version and terms.allow(build)
        for arch in release.arches
        for build in terms.builds(arch)
    )


def judge(
    facts: Facts, targets: Iterable[Target], toolkit: Toolkit | None, release: Release | None
) -> Iterator[str]:
    """Yield what stands against a list, each with the remedy; without a toolkit any is meant, and so on."""
    for target in targets:
        if not makers(facts, target.name):
            yield _nobody(facts, target)
        elif toolkit and target.name not in toolkit.capabilities:
            yield _toolkit_reason(facts, target, toolkit, release)
        elif release and (reason := _release_reason(facts, target, release)):
            yield reason + _instead(facts, target, toolkit, release)
        elif release and not toolkit and (reason := _out_of_reach(facts, target, release)):
            yield reason


def _nobody(facts: Facts, target: Target) -> str:
    major, _ = number(target.capability)
    names = {name for one in facts.toolkits for name in one.capabilities if plain(name)}
    near = [name for name in sorted(names, key=number) if number(name)[0] == major]
    return f"{target.name}: no toolkit makes code for it" + (f"; there is {', '.join(near)}" if near else "")


def _toolkit_reason(facts: Facts, target: Target, toolkit: Toolkit, release: Release | None) -> str:
    able = makers(facts, target.name)
    text = f"{target.name}: CUDA {toolkit.version} makes no code for it, CUDA {span(able)} does"
    if release is not None:
        fitting = [one for one in able if builds_with(facts, release, one)]
        text += f"; {release} builds with " + (f"CUDA {span(fitting)}" if fitting else "none of them")
    return text + _instead(facts, target, toolkit, release)


def _out_of_reach(facts: Facts, target: Target, release: Release) -> str | None:
    """Return why no build of a release has code for a target: its toolkits are others."""
    able = makers(facts, target.name)
    if any(builds_with(facts, release, one) for one in able):
        return None
    return (
        f"{target.name}: {release} builds with none of the toolkits that make code for it, CUDA {span(able)}"
    )


def _release_reason(facts: Facts, target: Target, release: Release) -> str | None:
    torch = release.torch_version
    if release.torch is None:
        return next(_unread(facts, target, torch), None)
    gpu = facts.capability(target.capability)
    if gpu is None:
        return None
    takers = gpu.extensions.get(target.name)
    if takers is not None and within(takers, torch):
        return None
    others = f"that of torch {bounds(takers)} does" if takers else "that of no release does"
    return (
        f"{target.name}: {release.package} is built by torch {torch}'s cpp_extension, which does not take it "
        f"({others})"
    )


def _unread(facts: Facts, target: Target, torch: str) -> Iterator[str]:
    """Yield why the CMake of a release of torch stops at a target."""
    wanted = ["two_digits"] if number(target.capability)[0] >= 10 else []  # noqa: PLR2004 - two digits
    for key in (*wanted, *target.suffix):
        able = facts.arch_spelling.get(key)
        if able is not None and not within(able, torch):
            others = f"that of torch {bounds(able)} can"
            yield f"{target.name}: the CMake of torch {torch} cannot read it ({others})"


def _instead(facts: Facts, target: Target, toolkit: Toolkit | None, release: Release | None) -> str:
    """Return what else serves the GPUs that a target was meant for, or nothing."""
    gpu = facts.capability(target.capability)
    able = {name for one in ([toolkit] if toolkit else facts.toolkits) for name in one.capabilities}
    names = sorted(filter(plain, able), key=number, reverse=True)
    fitting = [
        Target(name, ptx=True)
        for name in names
        if release is None or _release_reason(facts, Target(name), release) is None
    ]
    if gpu is None:
        return ""
    for one in fitting:
        if one.capability == gpu.name:
            return f"; {one.name} can stand for it"
        if code_runs(facts, one, gpu):
            return f"; {one.name} can stand for it: its code runs on {gpu.name} too"
    for one in fitting:
        if ptx_runs(facts, one, gpu) and not is_chip(facts, one.capability):
            return f"; {one} can stand for it: drivers compile its PTX for {gpu.name}"
    return ""
