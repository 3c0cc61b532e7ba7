"""Plan to build a wheel once more: its first build as its records tell it, and what differs now.

The records are the wheel's manifest or its statement. A *reason* is a clause that names an input
which is not, or cannot be shown to be, the same as at the first build.

Whoever made the wheel wrote its records, and people rebuild wheels because they do not trust them
yet. So a record is data: what it names and the rebuild would run is listed by `untrusted_parts`.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from packaging.utils import canonicalize_name
from packaging.version import Version

from torchmill.config.build import SPEED_ONLY_SWITCHES
from torchmill.plan.build_options import NO_OPTIONS, PYPI, Options
from torchmill.wheel import statement

# Inputs of compiling that other clauses name, or that change with others.
_UNNAMED_INPUTS = {"the plan", "installed packages", "interpreter: version", "requirements"}
_OPTIONS_OF_PATHS = ("torch", "patches")  # a record has only the names of their values
# The other options that a record has (`_chosen_options` in cell/manifest.py).
_OPTIONS_OF_TEXTS = ("label", "arch_list", "toolkit", "platform", "cpu", "debug_info", "secure")
# Values of a variable that can name neither a program nor a file: USE_MKLDNN=0, BLAS_BITS=64.
_SWITCH = re.compile(r"\d{1,6}|ON|OFF|TRUE|FALSE|YES|NO", re.ASCII | re.IGNORECASE)
# https://packaging.python.org/en/latest/specifications/name-normalization/
_PACKAGE_NAME = re.compile(r"[A-Z0-9]|[A-Z0-9][A-Z0-9._-]*[A-Z0-9]", re.ASCII | re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class FirstBuild:
    """What the records of a wheel say about its build."""

    wheel: str  # its file name
    sha256: str
    identifier: str  # of the session, "wheel-3.10-cpu"
    package: str
    tag: str
    options: Mapping[str, Any]
    torch: str  # that it is built against, "torch==1.13.1+cpu"; "" for torch itself
    torchmill: str  # the version that built it
    builder: str  # the URI of who built it
    commit: str  # the proven commit of its source; "" if none is proven
    contents: str  # sha256 of all files of the source; "" if it is not recorded
    archive: str  # sha256 of the archive that was fetched; "" if there was none
    origin: str  # where the source came from, as a text for people
    python: str  # the version of the interpreter, "3.12.1"
    interpreter: Mapping[str, str]  # sha256 of its files, by name
    requirements: Mapping[str, str]  # installed package -> version
    switches: Mapping[str, str]  # variables that the build set
    patches: Mapping[str, str]  # sha256 by name; "" if it is not recorded
    edits: Sequence[str]  # files of the source that somebody edited
    network: bool  # the user let the build have the network
    made_of: str = ""  # the original of a slim wheel or of a variant; "" for other wheels
    # Digests of everything that decides what is compiled, by name. A statement has none.
    inputs: Mapping[str, str] = field(default_factory=dict)


def read_manifest(manifest: Mapping[str, Any]) -> FirstBuild:
    """Return what a manifest says. Raises KeyError, TypeError, … if it is of another shape."""
    first = _read_manifest(manifest)
    _require_shape(first)
    return first


def read_statement(document: Mapping[str, Any]) -> FirstBuild:
    """Return what a statement says. Raises KeyError, TypeError, … if it is of another shape."""
    first = _read_statement(document)
    _require_shape(first)
    return first


def _require_shape(first: FirstBuild) -> None:
    """Raise TypeError or ValueError if a value that a record gave cannot be what it should."""
    texts: list[object] = [*first.edits]
    for item in fields(first):
        value = getattr(first, item.name)
        if item.type is str:
            texts.append(value)
        elif item.type == Mapping[str, str]:
            texts += [*value, *value.values()]
    settings = first.options.get("settings", {})
    texts += [*settings, *settings.values(), *first.options.get("patches", ())]
    texts += [first.options.get(name, "") for name in ("torch", *_OPTIONS_OF_TEXTS)]
    for text in texts:
        if not isinstance(text, str):
            raise TypeError(f"{text!r} is no text")
    if first.torch:
        Version(first.torch.partition("==")[2])
    for name, version in first.requirements.items():
        # These become lines of a file in which pip would also read options and addresses.
        if version and not _PACKAGE_NAME.fullmatch(name):
            raise ValueError(f"{name!r} is no name of a package")
        if version:
            Version(version)


def _read_manifest(manifest: Mapping[str, Any]) -> FirstBuild:
    tools = dict(manifest["tools"])
    version = str(tools.pop("version", ""))
    records = manifest["stages"]
    inputs = dict(records["compile"]["inputs"]) if "compile" in records else {}
    patches = {name: inputs.get(f"patch {name}", "") for name in manifest["patches"]}
    return FirstBuild(
        wheel=manifest["wheel"],
        sha256=manifest["sha256"],
        identifier=manifest["identifier"],
        package=manifest["package"],
        tag=manifest["tag"],
        options=dict(manifest["options"]),
        torch=manifest["torch"] or "",
        torchmill=manifest["builder"].get("torchmill", ""),
        builder=manifest["builder"].get("id", ""),
        commit=manifest["commit"] or "",
        contents=manifest["contents"],
        archive=manifest["archive"] or "",
        origin=manifest["source"],
        python=version.partition(" ")[0],
        interpreter=tools,
        requirements=_split_requirements(manifest["requirements"]),
        switches=dict(manifest["switches"]),
        patches=patches,
        edits=sorted(manifest["edits"]),
        network=manifest["network"] == "open: --network",
        made_of=_original_of(manifest),
        inputs=inputs,
    )


def _read_statement(document: Mapping[str, Any]) -> FirstBuild:
    predicate = document["predicate"]
    definition = predicate["buildDefinition"]
    parameters = definition["externalParameters"]
    computed = definition["internalParameters"]
    builder = predicate["runDetails"]["builder"]
    materials: dict[str, list[Mapping[str, Any]]] = {}
    for material in definition["resolvedDependencies"]:
        materials.setdefault(material["annotations"]["kind"], []).append(material)
    sources = materials.get(statement.SOURCE_KIND, [])
    source = sources[0] if sources else {"annotations": {}}
    notes = source["annotations"]
    digest = source.get("digest", {})
    interpreter = {}
    python = ""
    for material in materials.get(statement.INTERPRETER_KIND, []):
        interpreter[material["name"]] = material["digest"]["sha256"]
        python = _purl_version(material["uri"])
    requirements = {}
    for material in materials.get(statement.REQUIREMENT_KIND, []):
        requirements[material["name"]] = _purl_version(material["uri"])
    patches = {}
    for material in materials.get(statement.PATCH_KIND, []):
        patches[material["name"]] = material.get("digest", {}).get("sha256", "")
    subject = document["subject"][0]
    return FirstBuild(
        wheel=subject["name"],
        sha256=subject["digest"]["sha256"],
        identifier=parameters["identifier"],
        package=parameters["package"],
        tag=parameters["tag"],
        options=dict(parameters["options"]),
        torch=computed["torch"] or "",
        torchmill=builder.get("version", {}).get("torchmill", ""),
        builder=builder["id"],
        commit=digest.get("gitCommit", ""),
        contents=notes.get("contents sha256", ""),
        archive="" if digest.get("sha256") == notes.get("contents sha256") else digest["sha256"],
        origin=notes.get("origin", ""),
        python=python,
        interpreter=interpreter,
        requirements=requirements,
        switches=dict(computed["switches"]),
        patches=patches,
        edits=sorted(material["name"] for material in materials.get(statement.EDIT_KIND, [])),
        network=computed["network"] == "open",
        made_of=_original_of(parameters),
    )


def _original_of(record: Mapping[str, Any]) -> str:
    """Return the wheel that a slim wheel or a variant was made of; "" for other wheels."""
    original = record.get("original")
    if original:
        return str(original["wheel"])
    if "kept_for" in record or "wheel_variant" in record:
        return "another wheel"
    return ""


def _purl_version(purl: str) -> str:
    """Return the version in a package URL, whose other parts torchmill's statements repeat."""
    from packageurl import PackageURL  # slow to load

    return PackageURL.from_string(purl).version or ""


def _split_requirements(lines: Sequence[str]) -> dict[str, str]:
    """Return versions by package; `lines` are like "ninja==1.13.2"."""
    versions = {}
    for line in lines:
        name, _, version = line.partition("==")
        versions[name] = version
    return versions


def recorded_options(
    first: FirstBuild, torch: str, patches: Mapping[str, str]
) -> tuple[Options, list[str]]:
    """Return the options of a build, and the recorded ones that have no value here.

    A record has only the name of the torch that `--torch` named, and of patches: `torch` is the
    place of the former, "" if it is not known, and `patches` are the paths of the latter by name.
    """
    values: dict[str, Any] = {}
    missing = []
    for name, value in first.options.items():
        if name in {*_OPTIONS_OF_TEXTS, "settings"}:
            values[name] = value
        elif name not in {*_OPTIONS_OF_PATHS, "torch_installed"}:
            missing.append(f"the option {name}, which no record of this torchmill has")
    recorded_torch = first.options.get("torch", "")
    if recorded_torch == PYPI:
        values["torch"] = PYPI
    elif recorded_torch and torch:
        values["torch"] = torch
    elif recorded_torch:
        missing.append(f"{recorded_torch}, the torch that it was built against: name it by --torch")
    values["patches"] = {}
    for name in first.options.get("patches", ()):
        if name in patches:
            values["patches"][name] = patches[name]
        else:
            missing.append(f"{name.rpartition('/')[2]}, a patch of the user: name it by --patch")
    if first.network:
        values["network"] = True
    return Options(**{**_plain_values(NO_OPTIONS), **values}), missing


def untrusted_parts(
    first: FirstBuild, *, fetches: bool, release_commit: str, wheels: Sequence[str]
) -> Iterator[str]:
    """Yield a clause for each part of a record that could run code of whoever wrote it.

    `fetches` tells that the source would be fetched from where the record says, `release_commit` is
    the commit of the release in the facts, "" if none is known, and `wheels` are those beside the
    wheel that the build would install.
    """
    if fetches and first.commit and first.commit != release_commit:
        # https://docs.github.com/en/pull-requests/collaborating-with-pull-requests/working-with-forks/about-permissions-and-visibility-of-forks
        yield (
            f"commit {first.commit}, which is not that of {first.tag}: a host of repositories may "
            "serve commits of every fork under the address of the original"
        )
    elif fetches and not first.commit and not _is_of_known_place(first.origin):
        yield f"a source from {first.origin}"
    for name, value in first.options.get("settings", {}).items():
        if not _SWITCH.fullmatch(value):
            yield f"the variable {name}={value}"
    if first.network:
        yield "a network that is open while it is compiled"
    for wheel in wheels:
        yield f"{wheel} beside it, which the build would install and import"


def _is_of_known_place(origin: str) -> bool:
    """Tell whether a source came from PyPI or Debian, by the words of the record."""
    return origin.startswith(("PyPI's ", "Debian's "))


def _plain_values(options: Options) -> dict[str, Any]:
    """Return the values of options by the names of their fields."""
    return {option.name: getattr(options, option.name) for option in fields(Options)}


def pinned_requirements(first: FirstBuild, offered: Mapping[str, bool]) -> list[str]:
    """Return the lines of a file of constraints: each package as it was installed then.

    `offered` tells by package whether its recorded version can be had. If it cannot, the package is
    not pinned; a package that is not among them is. The torch that the wheel is built against is
    not pinned, because the plan names it.
    """
    base = canonicalize_name(first.torch.partition("==")[0])
    lines = []
    for name, version in first.requirements.items():
        is_base = canonicalize_name(name) == base
        if version and not is_base and offered.get(name, True):
            lines.append(f"{name}=={version}")
    return lines


def indexable_packages(first: FirstBuild) -> list[str]:
    """Return the recorded packages that an index can be asked about, without the base package.

    A package whose name and version make no requirement, such as one with a path, is left out.
    """
    base = canonicalize_name(first.torch.partition("==")[0])
    names = []
    for name, version in first.requirements.items():
        if version and canonicalize_name(name) != base:
            names.append(name)
    return names


@dataclass(frozen=True, slots=True)
class SecondBuild:
    """What this machine would build with."""

    torchmill: str
    python: str  # "3.12.1"
    interpreter: Mapping[str, str]  # sha256 of its files, by name
    switches: Mapping[str, str]
    patches: Mapping[str, str]  # sha256, by name
    inputs: Mapping[str, str]  # digests of everything that decides what is compiled, by name
    unavailable: Sequence[str]  # packages whose recorded version no index offers


def other_inputs(first: FirstBuild, second: SecondBuild) -> Iterator[str]:
    """Yield a clause for each input that differs, or may differ, from that of the first build."""
    yield from _other_builder(first, second)
    for path in first.edits:
        yield f"{path} was edited by hand before it was built, and only its digest is recorded"
    yield from _other_patches(first, second)
    for name in second.unavailable:
        yield f"{name} {first.requirements[name]} was installed, and no index offers it"
    yield from _other_switches(first, second)
    yield from _other_machine_inputs(first, second)


def _other_builder(first: FirstBuild, second: SecondBuild) -> Iterator[str]:
    """Yield a clause for another builder, torchmill or Python."""
    if first.builder != statement.LOCAL_BUILDER:
        yield f"it was built by {first.builder}, and this is another machine"
    if first.torchmill.endswith("-dirty"):
        yield f"it was built by torchmill {first.torchmill}, with changes that nobody committed"
    elif first.torchmill != second.torchmill:
        yield f"it was built by torchmill {first.torchmill}, this is {second.torchmill}"
    if first.python != second.python:
        yield f"it was built with Python {first.python}, here is {second.python}"
    elif dict(first.interpreter) != dict(second.interpreter):
        yield f"its Python {first.python} was another build of that version than the one here"


def _other_patches(first: FirstBuild, second: SecondBuild) -> Iterator[str]:
    """Yield a clause for each patch that only one build applies, or that has other contents."""
    for name, sha256 in first.patches.items():
        if name not in second.patches:
            yield f"the patch {name} was applied, which is not planned here"
        elif sha256 and sha256 != second.patches[name]:
            yield f"the patch {name} has other contents than the one that was applied"
    for name in second.patches:
        if name not in first.patches:
            yield f"the patch {name} is planned here, and was not applied"


def _other_switches(first: FirstBuild, second: SecondBuild) -> Iterator[str]:
    """Yield a clause for each variable that the two builds set differently."""
    for name in sorted({*first.switches, *second.switches} - SPEED_ONLY_SWITCHES):
        then = first.switches.get(name)
        now = second.switches.get(name)
        if then == now:
            continue
        if now is None:
            yield f"{name} was {then}, and is not set here"
        elif then is None:
            yield f"{name} is {now} here, and was not set"
        else:
            yield f"{name} was {then}, here it is {now}"


def _other_machine_inputs(first: FirstBuild, second: SecondBuild) -> Iterator[str]:
    """Yield a clause for each further input of compiling whose digest differs: a compiler, a library.

    Digests say that something differs, and not what it was.
    """
    if not first.inputs:
        yield "compilers and libraries of its machine cannot be compared: only its manifest has them"
        return
    for name in sorted({*first.inputs, *second.inputs} - _UNNAMED_INPUTS):
        if name.startswith(("switch ", "patch ", "interpreter: ")):
            continue
        if name not in second.inputs:
            yield f"its machine had an input that this one lacks: {name}"
        elif name not in first.inputs:
            yield f"this machine has an input that its machine lacked: {name}"
        elif first.inputs[name] != second.inputs[name]:
            yield f"another {name} than on its machine"
