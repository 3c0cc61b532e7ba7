"""Check that there is a wheel of what a package is built against."""

from collections.abc import Iterator
from fnmatch import fnmatchcase

from torchmill.config.cell_lookup import base_release
from torchmill.plan.doctor.finding import CheckContext, Finding
from torchmill.plan.published import published_wheels


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
    ways = (
        *([f"PIP_EXTRA_INDEX_URL={index} {context.session}"] if index else []),
        f"`{context.session} -- --torch WHEEL` builds against a wheel that you have",
    )
    found = "not in dist/" if context.wheels is not None else "not described"
    yield Finding(base, found, torch, "warning", f"nox -s {name}", because, other_cures=ways)


def _official_index(context: CheckContext, torch: str) -> str:
    """Return the index of upstream's that has a version of torch for the Python and the machine; "" if none has."""
    release = base_release(context.facts, context.cell.release)
    wheels = published_wheels(context.facts, release, context.build.arch)
    has = (one for one in wheels if f"{one.package}=={one.version}" == torch and context.build.python in one.pythons)
    return next((one.index for one in has), "")
