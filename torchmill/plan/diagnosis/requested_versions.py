"""Compare the version that an installer was asked for with those that it saw, and find a Python for it."""

import re
from collections.abc import Iterator

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import Version

from torchmill.config.facts import Facts
from torchmill.config.release import Release
from torchmill.config.release_lookup import newest_release
from torchmill.config.versions import cuda_label, is_version
from torchmill.plan.diagnosis.situation import Fact, Situation

# System -> how the platform tags of its wheels begin.
_PLATFORMS = {"windows": "win", "macos": "macosx", "linux": "manylinux"}
_NONE = "none"  # the value of "offered" where an installer saw no version at all
# The Pythons that most packages have wheels for go first.
_PYTHONS = ("3.11", "3.12", "3.10", "3.13", "3.9", "3.14", "3.8", "3.15", "3.7")


def request_facts(facts: Facts, situation: Situation) -> Iterator[Fact]:
    """Yield how the wanted version compares with those for this Python: "older", "newer", "between".

    Of torch it is also known which Python its wheels are for, and which of its indexes has them.
    """
    requested = _plain(situation.value("wanted_version"))
    oldest = _plain(situation.value("oldest_offered"))
    newest = _plain(situation.value("offered"))
    basis = situation.known_facts("wanted_name", "wanted_version", "oldest_offered", "offered")
    if requested and oldest and newest:
        fit = "between"
        if requested < oldest:
            fit = "older"
        elif requested > newest:
            fit = "newer"
        yield Fact("wanted_fit", fit, "rules", basis=basis)
    if newest or situation.value("offered") == _NONE:
        yield Fact("offers", "some" if newest else _NONE, "rules", basis=basis)
    yield from _bound_facts(situation)
    release = _wanted_torch(facts, situation)
    if release is None:
        return
    basis = situation.known_facts("torch")
    python = _python_of(release, situation)
    if python:
        yield Fact("python_of_torch", python, "rules", basis=basis)
    wanted_label = situation.value("wanted_label") or situation.value("wanted_index")
    label = _label_to_take(release, wanted_label)
    if label:
        basis = situation.known_facts("torch", "wanted_label")
        yield Fact("label_to_take", label, "rules", basis=basis)


def _plain(text: str | None) -> Version | None:
    """Return a version without its label; None for what is no version."""
    if text is None or text == _NONE or not is_version(text):
        return None
    return Version(Version(text).public)


def _bound_facts(situation: Situation) -> Iterator[Fact]:
    """Yield a Python within the bounds that a package names."""
    bounds = situation.value("python_bounds")
    if not bounds:
        return
    try:
        specifier = SpecifierSet(re.sub(r"\s*(?:and|,)\s*", ",", bounds))
    except InvalidSpecifier:
        return
    for python in _PYTHONS:
        # "<=3.11" leaves 3.11.5 out, and "!=3.9.7" only that patch release.
        if all(specifier.contains(f"{python}.{patch}") for patch in ("0", "9")):
            basis = situation.known_facts("python_bounds")
            yield Fact("python_to_take", python, "rules", basis=basis)
            return


def _wanted_torch(facts: Facts, situation: Situation) -> Release | None:
    """Return the release of torch that a log names; None if it names none."""
    version = situation.value("torch_version")
    for release in facts.releases[newest_release(facts).package]:
        if release.version == version:
            return release
    return None


def _python_of(release: Release, situation: Situation) -> str:
    """Return the newest Python that torch's release has wheels of for the system; "" if it has none.

    The Python that the log shows does not count if an installer saw only other releases with it.
    """
    beginning = _PLATFORMS.get(situation.value("system") or "", "")
    pythons: set[str] = set()
    for platform, served in release.upstream.wheels.items():
        if platform.startswith(beginning):
            pythons.update(served)
    with_gil = [python for python in pythons or release.pythons if not python.endswith("t")]
    running = situation.value("python")
    if situation.value("oldest_offered") and running in with_gil:
        with_gil.remove(running)
    return max(with_gil, key=Version, default="")


def _label_to_take(release: Release, requested: str | None) -> str:
    """Return the label that a release's wheels have: the requested one, else the nearest.

    Nearest is the newest CUDA that is not newer than the requested one, else the oldest. If none is
    requested, it is that of the wheels on PyPI. "" if the release has no wheels with CUDA.
    """
    if requested == "cpu":
        return requested
    if requested is None:
        return cuda_label(release.cuda.pypi) if release.cuda.pypi else ""
    labels = [cuda_label(cuda) for cuda in sorted(release.cuda.official, key=Version)]
    if requested in labels:
        return requested
    older = [label for label in labels if _label_number(label) <= _label_number(requested)]
    if older:
        return older[-1]
    return labels[0] if labels else ""


def _label_number(label: str) -> int:
    """Return 118 of "cu118", and 92 of "cu92"."""
    return int(label.removeprefix("cu"))
