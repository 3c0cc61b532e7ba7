"""Write JSON Schemas of the files in build_configs/, by which editors check and explain facts.

`invoke facts --table` writes them into build_configs/schemas/. A table of a file is mostly a
dataclass, whose fields are read by their annotations; the schema takes them from the same list as
the reader (`field_readers`). Keys that a reader takes by itself are listed here, file by file.
tests/tools/test_fact_schemas.py compares both in both directions.

A description is the key's row in docs/reference/facts.md, or else the comment at its field.

No schema has `$ref`, because Taplo ignores a description beside one
(https://taplo.tamasfe.dev/configuration/developing-schemas.html).
"""

import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import NamedTuple

from tools.json_schema import SUFFIX, Schema, describe_class, field_comments
from tools.proof.speed import SpeedTrial
from tools.proof.upstream_run import UpstreamTests
from torchmill.config import facts_reader, package_reader, release_reader, toml_reader
from torchmill.config.build import Arch
from torchmill.config.conda_facts import CondaFacts, CondaName
from torchmill.config.costs import CompilePeak, CostAssumptions, KnownUnit, MeasuredRun
from torchmill.config.facts import Cxx11Abi, FailureCause, OfferedWheels
from torchmill.config.gpu import ArchName, Board, BoardIndex, Capability, DeviceMaker
from torchmill.config.images import Archive, BaseImage, ImageFacts
from torchmill.config.link_facts import LinkFacts
from torchmill.config.package import (
    BuildSetup,
    Edition,
    Package,
    PackageChecks,
    PackageKernels,
    PackageSource,
)
from torchmill.config.package_wheels import WheelSource
from torchmill.config.parsed import ParsedSource
from torchmill.config.release import (
    OfficialCuda,
    Release,
    ReleaseProof,
    UpstreamWheels,
    WheelTraits,
)
from torchmill.config.rule import OfficialPart, Rule, When
from torchmill.config.toolkit import PROVIDERS, Toolkit, ToolkitPart, ToolkitSource
from torchmill.config.vulnerability import Vulnerability
from torchmill.config.wheel_code import (
    FeatureLibrary,
    LibraryReading,
    PackageCode,
    ProcessorNeed,
    WheelCode,
)
from torchmill.core.paths import CHECKOUT

FOLDER = "schemas"  # in build_configs/
_REFERENCE = CHECKOUT / "docs" / "reference" / "facts.md"
_KEYS_OF_RELEASE = "in `[torch]`, `[torchvision]`, `[torchaudio]`"
# Tables of the reference that describe keys, by the first cell of their heads.
_DOCUMENTED = {
    Release: _KEYS_OF_RELEASE,
    ReleaseProof: _KEYS_OF_RELEASE,
    WheelTraits: _KEYS_OF_RELEASE,
    UpstreamWheels: _KEYS_OF_RELEASE,
    When: "key of `when`",
    Rule: "effect",
    WheelCode: "key",
}
# Keys that mean the same in every table that does not say otherwise.
_COMMON = {
    "source": "where the fact comes from: an address, or what was read or measured",
    "arches": "machines, as arches.toml names them",
    "arch": "a machine, as arches.toml names it",
    "release": "bounds of releases of torch, such as '>=2.4,<2.8'",
    "cuda": "bounds of CUDA toolkits, such as '>=11.8,<13'",
    "package": "a package, as its file in packages/ names it",
    "version": "a version (PEP 440)",
    "requires": "requirements for pip (PEP 508)",
    "name": "the name",
    "url": "an address",
    "commit": "the full commit of its tag",
    "date": "a date: '2022-12-15'",
    "glibc": "the version of a C library",
    "reason": "why, as a sentence without its full stop; it is shown to users",
    "low": "the lower bound",
    "high": "the upper bound",
}


class Key(NamedTuple):
    """A key of a table: what its value must be, and whether it must be there."""

    schema: Schema
    required: bool


def _text(pattern: str, *examples: str) -> Schema:
    return {"type": "string", "pattern": pattern, "examples": list(examples)}


def _texts(element: Schema) -> Schema:
    """Return the schema of a list of texts; a single text may be written without brackets."""
    single = {key: value for key, value in element.items() if key != "type"}
    return {"type": ["array", "string"], "items": element, **single}


def _template(*names: str) -> Schema:
    braced = "|".join(names)
    # Doubled braces stand for a brace, as in str.format.
    pattern = rf"^([^{{}}]|\{{\{{|\}}\}}|\{{({braced})\}})*$"
    return _text(pattern, f"{{{names[0]}}}")


def _range(low: Schema, high: Schema) -> Schema:
    return table({"low": Key(low, True), "high": Key(high, True)})


# Editors show a problem while a version is typed; the reader alone knows all of PEP 440.
_VERSION = _text(r"^\s*[vV]?[0-9]", "2.35")
_BOUNDS = _text(r"^\s*$|^\s*(~=|==|!=|<=|>=|<|>)\s*[vV]?[0-9]", ">=1.8,<2")
_BYTES = _text(r"^\s*[0-9]{1,20}(\.[0-9]+)?\s*([kKmMgGtT]?[iI]?[bB]|[kKmMgGtT])?\s*$", "2.2 GiB")
_STRING: Schema = {"type": "string"}
_LARGEST = toml_reader.LARGEST_NUMBER
_NUMBER: Schema = {"type": "number", "exclusiveMinimum": 0, "maximum": _LARGEST}
_BOUND: Schema = {"type": "number", "minimum": 0, "maximum": _LARGEST}
_INTEGER: Schema = {"type": "integer", "minimum": 0, "maximum": _LARGEST}


def table(keys: Mapping[str, Key], description: str = "") -> Schema:
    """Return the schema of a table that has these keys and no others."""
    schema: Schema = {"type": "object"}
    if description:
        schema["description"] = description
    properties = {}
    for name, key in keys.items():
        described = key.schema
        if "description" not in described and name in _COMMON:
            described = {"description": _COMMON[name], **described}
        properties[name] = described
    schema["properties"] = properties
    required = [name for name, key in keys.items() if key.required]
    if required:
        schema["required"] = required
    schema["additionalProperties"] = False
    return schema


def mapping(value: Schema, description: str = "") -> Schema:
    """Return the schema of a table of any keys, whose values are alike."""
    schema: Schema = {"type": "object"}
    if description:
        schema["description"] = description
    return {**schema, "additionalProperties": value}


def tables(element: Schema, description: str = "") -> Schema:
    """Return the schema of a list of tables; its description is that of a table by default."""
    schema: Schema = {"type": "array"}
    description = description or element.get("description", "")
    if description:
        schema["description"] = description
    return {**schema, "items": element}


# The values of annotations, as `toml_reader.READERS` reads them.
VALUES: dict[str, Schema] = {
    "str": _STRING,
    "str | None": _STRING,
    "Commit | None": _text(rf"^({toml_reader.COMMIT.pattern})?$", "0123456789" * 4),
    "Pythons": _texts(_text(rf"^{toml_reader.PYTHON.pattern}$", "3.10")) | {"minItems": 1},
    "Capabilities": _texts(_text(rf"^({toml_reader.CAPABILITY.pattern})?$", "8.6")),
    "Targets": _texts(_text(rf"^({toml_reader.TARGET.pattern})?$", "9.0a")),
    "Requirements": _texts(_STRING),
    "PlatformTemplate": _template("glibc", "macos"),
    "VariantTemplate": _template("variant"),
    "InstallTemplate": _template(*toml_reader.INSTALL_NAMES),
    "VersionTemplate": _template(*toml_reader.VERSION_NAMES),
    "CompilerTemplate": _template("major"),
    "bool": {"type": "boolean"},
    "float": _NUMBER,
    "Share": {**_NUMBER, "maximum": 1, "examples": [0.8]},
    "int": _INTEGER,
    "Positive": {**_INTEGER, "minimum": 1},
    "Bytes": _BYTES,
    "VersionText": _VERSION,
    "VersionText | None": _VERSION,
    "DateText | None": _text(r"^([0-9]{4}-[0-9]{2}-[0-9]{2})?$", "2022-12-15"),
    "SpecifierSet": _BOUNDS,
    "SpecifierSet | None": _BOUNDS,
    "WheelNames": _texts(
        _text(rf"^({toml_reader.WHEEL_NAME.pattern})?$", "spam-1.0-py3-none-any.whl")
    ),
    "Addresses": _texts(_text(rf"^({toml_reader.ADDRESS_START}|$)", "https://example.org")),
    "tuple[str, ...]": _texts(_STRING),
    "tuple[int, ...]": {"type": "array", "items": _INTEGER},
    "tuple[tuple[str, ...], ...]": {"type": "array", "items": _texts(_STRING)},
    "CostRange": _range(_BOUND, _NUMBER),
    "ByteRange": _range(_BYTES, _BYTES),
}
# Annotations whose reader takes an absent key for an empty value.
_MAY_BE_ABSENT = {
    "str | None",
    "Commit | None",
    "bool",
    "DateText | None",
    "SpecifierSet",
    "SpecifierSet | None",
}


def keys_of(kind: type, *absent: str, **changed: Key) -> dict[str, Key]:
    """Return the keys of a dataclass, without those that are `absent`, with those `changed`.

    Keys that no field has may be among the latter.
    """
    descriptions = _describe_keys(kind)
    keys: dict[str, Key] = {}
    for field in toml_reader.field_readers(kind):
        if field.key in absent or field.name in absent:
            continue
        schema = _field_schema(field)
        description = descriptions.get(field.name) or descriptions.get(field.key)
        if description:
            schema = {"description": description, **schema}
        keys[field.key] = Key(schema, not field.has_default and _is_required(field, schema))
    for name, key in changed.items():
        described = key.schema
        if name in descriptions:
            described = {"description": descriptions[name], **described}
        keys[name] = Key(described, key.required)
    return keys


def renamed_keys_of(kind: type, names: Mapping[str, str], *absent: str) -> dict[str, Key]:
    """Return the keys of a dataclass, of whose fields some have another name in a file.

    `names` has the keys of these fields.
    """
    descriptions = _describe_keys(kind)
    keys: dict[str, Key] = {}
    for name, key in keys_of(kind, *absent).items():
        file_name = names.get(name, name)
        described = key.schema
        if file_name in descriptions:
            described = described | {"description": descriptions[file_name]}
        keys[file_name] = Key(described, key.required)
    return keys


def _field_schema(field: toml_reader.FieldReader) -> Schema:
    match field.shape:
        case "value":
            return VALUES[field.content]
        case "map":
            return mapping(VALUES[field.content])
        case "choice":
            return {"type": "string", "enum": list(field.content)}
        case "table":
            return of_class(field.content)
        case "tables":
            return tables(of_class(field.content))


def _is_required(field: toml_reader.FieldReader, schema: Schema) -> bool:
    if field.shape in {"map", "tables"}:
        return False
    if field.shape == "table" or schema.get("type") == "object":
        # An absent table is read as an empty one.
        return "required" in schema
    return field.content not in _MAY_BE_ABSENT


def of_class(kind: type, *absent: str, **changed: Key) -> Schema:
    """Return the schema of a table that is read into a dataclass; see `keys_of`."""
    return table(keys_of(kind, *absent, **changed), _first_sentence(kind))


def _first_sentence(kind: type) -> str:
    return _without_python(describe_class(kind))


@cache
def _describe_keys(kind: type) -> Mapping[str, str]:
    """Return what is said of the keys of a dataclass, by the names of keys or fields."""
    comments = {name: _without_python(text) for name, text in field_comments(kind)}
    rows = _documented_keys(_DOCUMENTED[kind]) if kind in _DOCUMENTED else {}
    descriptions = dict(comments)
    for keys, meaning in rows.items():
        for key in keys:
            # A row for several keys says less of each than its comment.
            if len(keys) == 1 or key not in comments:
                descriptions[key] = meaning
    return descriptions


def _without_python(text: str) -> str:
    """Return what is said of a value of Python in the words of a TOML file."""
    return re.sub(r"\bNone\b|\(\)", "absent", text)


@cache
def _documented_keys(head: str) -> Mapping[tuple[str, ...], str]:
    """Return the rows of a table of the reference: the keys, and their meaning without links."""
    meanings: dict[tuple[str, ...], str] = {}
    # A table that the reference no longer has is an error.
    _, rows = _REFERENCE.read_text("utf-8").split(f"| {head} |", 1)
    for line in rows.partition("\n\n")[0].splitlines()[2:]:
        names, meaning = line.strip("| ").split(" | ", 1)
        keys = tuple(re.findall(r"`(\w+)\b[^`]*`", names))
        meanings[keys] = re.sub(r"\[(.*?)\]\(.*?\)", r"\1", meaning)
    return meanings


def _optional(schema: Schema, description: str = "") -> Key:
    return Key({"description": description, **schema} if description else schema, False)


def _required(schema: Schema, description: str = "") -> Key:
    return Key({"description": description, **schema} if description else schema, True)


def _named(kind: type, *absent: str) -> Schema:
    """Return the schema of a file that has a table for each value, called by its name."""
    return mapping(of_class(kind, *absent), f"One table for each. {_first_sentence(kind)}")


def _lists(**kinds: Schema) -> Schema:
    """Return the schema of a file of lists of tables, by their keys."""
    return table({name: _optional(tables(element)) for name, element in kinds.items()})


def _arch_names() -> Schema:
    spelling = mapping(
        _BOUNDS,
        "releases whose CMake reads a capability that is written so: 'two_digits' for 10.0, "
        "and the suffixes 'a' and 'f'",
    )
    return table({"spelling": _optional(spelling), "name": _optional(tables(of_class(ArchName)))})


def _vulnerabilities() -> Schema:
    read = _required(VALUES["DateText | None"], "the day on which the sources were read")
    return table({"read": read, "vulnerability": _optional(tables(of_class(Vulnerability)))})


def _causes() -> Schema:
    known = _optional(_STRING, "a table of known_names.toml, for the group 'name' of the patterns")
    return _lists(cause=of_class(FailureCause, "answers", known=known))


def _runs() -> Schema:
    return table(
        {
            "assumed": _required(of_class(CostAssumptions)),
            "run": _optional(tables(of_class(MeasuredRun))),
            "peak": _optional(tables(of_class(CompilePeak))),
        }
    )


def _toolkit_sources() -> Schema:
    known = keys_of(ToolkitSource, "provider")
    for name in ("versions", "places"):
        known[name] = Key(known[name].schema, False)
    source = table(known, _first_sentence(ToolkitSource))
    return table({provider: _optional(tables(source)) for provider in PROVIDERS})


def _images() -> Schema:
    base = keys_of(BaseImage)
    pattern = rf"^({facts_reader.DIGEST.pattern})?$"
    digest = base["digest"].schema | _text(pattern, "sha256:" + "0123456789abcdef" * 4)
    base["digest"] = Key(digest, False)
    base["source"] = Key(base["source"].schema, True)
    uv = {
        "version": _required(_VERSION, "the release of uv that brings Pythons"),
        "pythons": _required(VALUES["Pythons"], "that this release can bring"),
        "source": _required(_STRING),
    }
    changed = {
        "base": _optional(tables(table(base, _first_sentence(BaseImage)))),
        "uv": _required(table(uv, "How builders get Pythons that their image lacks.")),
    }
    absent = ("bases", "archives", "uv", "uv_pythons")
    return table(keys_of(ImageFacts, *absent) | changed)


def _conda() -> Schema:
    name = keys_of(CondaName, "name")
    name["pypi"] = _required(
        _texts(_text(r"^[^A-Z_.]*$", "torch")), "projects on PyPI that it stands for"
    )
    name["conda"] = _required(_STRING, "the conda package: 'pytorch'")
    return table(
        keys_of(CondaFacts, "names")
        | {"name": _optional(tables(table(name, _first_sentence(CondaName))))}
    )


def _wheel_code() -> Schema:
    code = _optional(mapping(of_class(LibraryReading, "name")))
    return _lists(wheel=of_class(WheelCode, "package", code=code))


def _package() -> Schema:
    plain = rf"^({package_reader.PLAIN_NAME.pattern})?$"
    keys = keys_of(Package, "source", "setup", "rules", "checks", "kernels", "editions")
    keys |= keys_of(PackageSource, "debian") | keys_of(BuildSetup, "off_spelling")
    keys |= renamed_keys_of(PackageChecks, package_reader.CHECKS_KEYS)
    keys |= keys_of(PackageKernels)
    for name in ("name", "session", "import_name", "checks"):
        keys[name] = Key(keys[name].schema | {"pattern": plain}, keys[name].required)
    keys["tag"] = Key(keys["tag"].schema | _template("version"), False)
    releases = _optional(_BOUNDS, "releases that want it so")
    off = table({"releases": releases}) | {"additionalProperties": _STRING}
    keys["off_spelling"] = _optional(
        off, "variable that switches something off, by the one that switches it on"
    )
    suites = mapping(mapping(_STRING), "suite -> folder of a submodule -> source that fills it")
    sources = mapping(_STRING, "version -> suite and source package: 'trixie/pytorch'")
    debian = {"sources": _optional(sources), "fill": _optional(suites)}
    keys["debian"] = _optional(table(debian), "releases that Debian has the sources of")
    edition = keys_of(Edition)
    edition["version"] = _required(_VERSION, "its version")
    edition["torch"] = Key(edition["torch"].schema, True)
    keys["release"] = _optional(tables(table(edition, _first_sentence(Edition))))
    keys["rule"] = _optional(tables(of_class(Rule, "name")))
    # A kind may have the keys that a package must have otherwise.
    of_kind = [name for name in keys_of(BuildSetup, "off_spelling") if keys[name].required]
    for name in of_kind:
        keys[name] = Key(keys[name].schema, False)
    conditions = {
        "dependencies": {"release": {"anyOf": [{"required": ["after"]}, {"required": ["kind"]}]}},
        "allOf": [
            {"anyOf": [{"required": ["repository"]}, {"required": ["pypi"]}]},
            {"anyOf": [{"required": ["kind"]}, {"required": of_kind}]},
        ],
    }
    return table(keys, _first_sentence(Package)) | conditions


def _kind() -> Schema:
    of_package = keys_of(Package, "source", "setup", "rules", "checks", "kernels", "editions")
    of_package |= keys_of(BuildSetup, "off_spelling")
    keys = {name: Key(of_package[name].schema, False) for name in package_reader.KIND_KEYS}
    keys["rule"] = _optional(tables(of_class(Rule, "name")))
    return table(keys, "What all packages of a kind have in common; their own files go first.")


def _release() -> Schema:
    lists = {
        "capabilities": _optional(_STRING, "TORCH_CUDA_ARCH_LIST of the wheels for x86_64"),
        "capabilities_aarch64": _optional(_STRING, "the same of those for aarch64"),
    }
    official = of_class(OfficialCuda, "capabilities", **lists)
    cuda = {
        "range": _optional(_BOUNDS, "toolkits that the sources take"),
        "pypi": _optional(_VERSION, "the toolkit of the wheels on PyPI"),
        "official": _optional(mapping(official, "toolkit -> facts about the official wheels")),
    }
    built_from = _texts(_STRING) | {"type": ["string", "object"]}
    del built_from["items"]
    built_from["additionalProperties"] = VALUES["tuple[str, ...]"]
    keys = keys_of(Release, "package", "tag", "torch", "cuda", "proof", "wheel", "upstream")
    keys |= keys_of(ReleaseProof, "sha256")
    keys |= renamed_keys_of(WheelTraits, release_reader.WHEEL_KEYS, "stable_abi")
    keys |= keys_of(UpstreamWheels, built_from=_optional(built_from))
    keys["version"] = _required(_VERSION, "the version of the package")
    for name in ("pythons", "arches"):
        keys[name] = Key(keys[name].schema, False)
    keys["cuda"] = _optional(table(cuda), "CUDA toolkits; without it, those of the torch it is for")
    return mapping(table(keys), "One table for each package, that of torch first.")


# What makes the schema of each kind of file, by the schema's name.
FILES: Mapping[str, Callable[[], Schema]] = {
    "arch_names": _arch_names,
    "arches": lambda: _named(Arch, "name"),
    "archives": lambda: _lists(archive=of_class(Archive)),
    "board_indexes": lambda: _lists(index=of_class(BoardIndex)),
    "causes": _causes,
    "conda": _conda,
    "gpu_hosts": lambda: _lists(board=of_class(Board)),
    "gpus": lambda: (
        _named(Capability, "name")
        | {"propertyNames": {"pattern": rf"^{toml_reader.CAPABILITY.pattern}$"}}
    ),
    "images": _images,
    "indexes": lambda: _lists(wheels=of_class(OfferedWheels)),
    "kind": _kind,
    "kept_libraries": lambda: table({"names": _optional(_texts(_STRING), "patterns of files")}),
    "known_names": lambda: table({"names": _optional(mapping(_STRING), "lines 'answer: NAME …'")}),
    "linking": lambda: of_class(LinkFacts),
    "makers": lambda: _lists(maker=of_class(DeviceMaker)),
    "official": lambda: _lists(part=of_class(OfficialPart), cxx11_abi=of_class(Cxx11Abi)),
    "package": _package,
    "nvidia_code": lambda: _lists(package=of_class(PackageCode), feature=of_class(FeatureLibrary)),
    "parsed": lambda: _lists(source=of_class(ParsedSource)),
    "processors": lambda: _lists(need=of_class(ProcessorNeed)),
    "release": _release,
    "runs": _runs,
    "speed": lambda: of_class(SpeedTrial),
    "toolkit_parts": lambda: _named(ToolkitPart, "name"),
    "toolkit_sources": _toolkit_sources,
    "toolkits": lambda: (
        _named(Toolkit, "version", "variant") | {"propertyNames": {"pattern": _VERSION["pattern"]}}
    ),
    "units": lambda: _lists(unit=of_class(KnownUnit)),
    "upstream_tests": lambda: mapping(tables(of_class(UpstreamTests)), "One list per package."),
    "vulnerabilities": _vulnerabilities,
    "wheel_code": _wheel_code,
    "package_wheels": lambda: _lists(place=of_class(WheelSource)),
}


def schema_name(fact: str) -> str:
    """Return the name of the schema of a file of facts, by its path in build_configs/."""
    folder, _, name = fact.removesuffix(".toml").rpartition("/")
    if folder in {"kinds", "packages", "releases"}:
        return folder.removesuffix("s")
    if folder == "package_wheels":
        return folder
    if folder == "wheel_code":
        return "nvidia_code" if name == "nvidia" else "wheel_code"
    return name


def schema_line(fact: str) -> str:
    """Return the first line of a file of facts, which names its schema for editors."""
    up = "../" * fact.count("/") or "./"
    return f"#:schema {up}{FOLDER}/{schema_name(fact)}{SUFFIX}"


def fact_schemas() -> dict[str, Schema]:
    """Return every schema by its name."""
    return {name: make() for name, make in FILES.items()}
