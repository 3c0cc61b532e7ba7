"""Check that pip will find a wheel of the torch that an extension is built against."""

from collections.abc import Iterator
from fnmatch import fnmatchcase

from torchmill.config.official_wheels import wheel_places, wheel_pythons
from torchmill.config.release_lookup import base_release
from torchmill.plan.doctor.finding import CheckContext, Finding
from torchmill.plan.wheel_name import python_tag


def check_base_wheel(context: CheckContext) -> Iterator[Finding]:
    """Yield the finding on the torch of an extension, if pip needs a wheel of a local version.

    PyPI has no local versions ("2.4.1+cu118"), so pip stops unless the wheel is in dist/ or on an
    index of the user's:
    https://packaging.python.org/en/latest/specifications/version-specifiers/
    """
    torch = context.plan.wheel.torch  # "torch==2.4.1+cu118"
    base = context.package.after
    if torch is None or base is None:
        return
    # With `--torch`, pip is given a wheel file or PyPI's version, and this wheel is not required.
    if torch not in context.plan.requirements or "+" not in torch:
        return
    wheel = _built_wheel(context, torch)
    if wheel:
        yield Finding(base, f"dist/{wheel}", torch, "ok")
        return
    base_session = context.facts.packages[base].session
    # "vision-3.10-cu118" is built against the torch of "wheel-3.10-cu118".
    identifier = context.plan.identifier.replace(context.package.session, base_session, 1)
    cures = [
        f"nox -s {identifier}",
        f"`{context.session} -- --torch WHEEL` builds against a wheel that you have",
    ]
    because = f"pip stops unless it finds {torch} in dist/ or on an index that it is told of"
    index = _official_index(context, torch)
    if index:
        # To download torch takes minutes, to build it takes hours.
        cures.insert(0, f"PIP_EXTRA_INDEX_URL={index} {context.session}")
    else:
        because += "; no index with it is recorded"
    state = "not in dist/" if context.wheels is not None else "not described"
    yield Finding(
        base, state, torch, "warning", cure=cures[0], because=because, other_cures=tuple(cures[1:])
    )


def _built_wheel(context: CheckContext, torch: str) -> str:
    """Return the file name of a wheel in dist/ that is the required torch; "" if there is none."""
    tags = python_tag(context.build.python)
    pattern = f"{torch.replace('==', '-')}-{tags}-*_{context.build.arch}.whl"
    for name in context.wheels or ():
        if fnmatchcase(name, pattern):
            return name
    return ""


def _official_index(context: CheckContext, torch: str) -> str:
    """Return upstream's index with the required torch for the Python and arch of the build, or ""."""
    release = base_release(context.facts, context.cell.release)
    build = context.build
    if build.python not in wheel_pythons(context.facts, release, build.arch):
        return ""
    for place in wheel_places(context.facts, release, build.variant, build.arch):
        label = place.label.format(variant=build.variant)
        if f"{release.package}=={release.version}{label}" == torch:
            return place.url.format(variant=build.variant)
    return ""
