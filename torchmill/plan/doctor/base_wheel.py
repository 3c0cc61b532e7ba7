"""Check that there is a wheel of what a package is built against."""

from collections.abc import Iterator
from fnmatch import fnmatchcase

from torchmill.config.cell_lookup import base_release
from torchmill.config.official_wheels import wheel_places, wheel_pythons
from torchmill.plan.doctor.finding import CheckContext, Finding


def check_base_wheel(context: CheckContext) -> Iterator[Finding]:
    """Yield the finding on the torch of a dependent package, if pip has to find a wheel of a local version.

    PyPI has no such versions (https://packaging.python.org/en/latest/specifications/version-specifiers/), so pip stops
    unless the wheel is in dist/ or an index of the user's has it. `--torch` names another one, which pip is given.
    """
    torch, base = context.plan.torch, context.package.after
    if torch is None or base is None or torch not in context.plan.requirements or "+" not in torch:
        return
    python = context.build.python.replace(".", "")
    pattern = f"{torch.replace('==', '-')}-cp{python}-*_{context.build.arch}.whl"
    if wheel := next((name for name in context.wheels or () if fnmatchcase(name, pattern)), ""):
        yield Finding(base, f"dist/{wheel}", torch, "ok")
        return
    session = context.facts.packages[base].session
    name = context.plan.identifier.replace(context.package.session, session, 1)
    index = _official_index(context, torch)
    because = f"pip stops unless it finds {torch} in dist/ or on an index that it is told"
    because += "" if index else "; no index with it is recorded"
    ways = [
        f"nox -s {name}",
        f"`{context.session} -- --torch WHEEL` builds against a wheel that you have",
    ]
    if index:  # to download it takes minutes, and to build it hours
        ways.insert(0, f"PIP_EXTRA_INDEX_URL={index} {context.session}")
    found = "not in dist/" if context.wheels is not None else "not described"
    yield Finding(base, found, torch, "warning", ways[0], because, other_cures=tuple(ways[1:]))


def _official_index(context: CheckContext, torch: str) -> str:
    """Return the index of upstream's that has a version of torch for the Python and the machine; "" if none has."""
    release, build = base_release(context.facts, context.cell.release), context.build
    if build.python not in wheel_pythons(context.facts, release, build.arch):
        return ""
    for place in wheel_places(context.facts, release, build.variant, build.arch):
        if (
            f"{release.package}=={release.version}{place.label.format(variant=build.variant)}"
            == torch
        ):
            return place.url.format(variant=build.variant)
    return ""
