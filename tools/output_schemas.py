"""Write JSON Schemas of what torchmill says to programs: outputs of --json, and files beside wheels.

`invoke facts --table` writes them into docs/reference/schemas/. The schema of a value that is a
dataclass is made of its fields and their comments. tests/tools/test_output_schemas.py compares the
schemas with what the real commands print, in both directions.

A schema takes keys that it does not name: a newer torchmill may have added them.
"""

import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import is_dataclass
from types import MappingProxyType, NoneType, UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from millguard.limits import CpuQuota, LimitReading
from millpress.bundling import BundledLibrary

from tools.json_schema import Schema, describe_class, field_comments
from tools.proof import outcomes, speed
from torchmill.cell.containers.engine import Mount
from torchmill.cell.up_to_date import STAGES, StageRecord
from torchmill.commands.index_variants import VariantCost
from torchmill.commands.jobs import CompileDemand
from torchmill.config.build import Processor
from torchmill.config.package_wheels import Evidence
from torchmill.config.vulnerability import Kind, Severity
from torchmill.core import formats
from torchmill.deliver.index.folder import IndexOutcome
from torchmill.fetch.source.source import Source
from torchmill.fetch.source.tree import TreeFingerprint
from torchmill.plan.doctor.finding import Finding
from torchmill.plan.doctor.judgement import Judgement
from torchmill.plan.estimate import Estimate, EstimateSpan
from torchmill.plan.exposure import STATES
from torchmill.plan.first_error import BuildFailure
from torchmill.plan.job_count import JobCount
from torchmill.plan.link_overflow import OverflowRisk
from torchmill.plan.package_family import FamilyCell, FamilyJob
from torchmill.plan.published_wheel import Fit
from torchmill.plan.shares import SharedBuild
from torchmill.plan.trial import Standing
from torchmill.toolchain.compiler_cache import CacheHits
from torchmill.wheel.verify.clean_environment import CheckResult

FOLDER = "schemas"  # in docs/reference/
_SIMPLE: Mapping[Any, Schema] = {
    str: {"type": "string"},
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"type": "number"},
    Any: {},
}


def text(description: str) -> Schema:
    """Return the schema of a text."""
    return {"description": description, "type": "string"}


def words(choices: Sequence[str], description: str) -> Schema:
    """Return the schema of a text that is one of a few."""
    return {"description": description, "type": "string", "enum": list(choices)}


def flag(description: str) -> Schema:
    """Return the schema of true or false."""
    return {"description": description, "type": "boolean"}


def whole(description: str) -> Schema:
    """Return the schema of a whole number."""
    return {"description": description, "type": "integer"}


def number(description: str) -> Schema:
    """Return the schema of a number."""
    return {"description": description, "type": "number"}


def texts(description: str) -> Schema:
    """Return the schema of a list of texts."""
    return listed({"type": "string"}, description)


def listed(element: Schema, description: str) -> Schema:
    """Return the schema of a list."""
    return {"description": description, "type": "array", "items": element}


def by_name(value: Schema, description: str) -> Schema:
    """Return the schema of an object of any keys, whose values are alike."""
    return {"description": description, "type": "object", "additionalProperties": value}


def names(description: str) -> Schema:
    """Return the schema of an object of any keys, whose values are texts."""
    return by_name({"type": "string"}, description)


def nullable(schema: Schema) -> Schema:
    """Return the schema of a value that may be null."""
    return {**schema, "type": [schema["type"], "null"]}


def record(description: str, keys: Mapping[str, Schema], optional: Sequence[str] = ()) -> Schema:
    """Return the schema of an object that has all of these keys, but for the `optional` ones."""
    return {
        "description": description,
        "type": "object",
        "properties": dict(keys),
        "required": [name for name in keys if name not in optional],
    }


def of_class(kind: Any, further: Mapping[str, Schema] = MappingProxyType({})) -> Schema:
    """Return the schema of a dataclass as `asdict` makes it an object.

    `further` keys come on top, or take the place of fields.
    """
    comments = dict(field_comments(kind))
    keys: dict[str, Schema] = {}
    for name, hint in get_type_hints(kind).items():
        if name in further:
            continue
        schema = _of_hint(hint)
        if name in comments and "description" not in schema:
            schema = {"description": comments[name].replace("None", "null"), **schema}
        keys[name] = schema
    return record(describe_class(kind), keys | dict(further))


def _of_hint(hint: Any) -> Schema:
    """Return the schema of a value of a type, as `asdict` and JSON write it."""
    origin = get_origin(hint)
    arguments = get_args(hint)
    if hint in _SIMPLE:
        schema = dict(_SIMPLE[hint])
    elif origin is Literal:
        schema = {"type": "string", "enum": list(arguments)}
    elif origin in {UnionType, typing.Union}:
        (inner,) = (argument for argument in arguments if argument is not NoneType)
        schema = nullable(_of_hint(inner))
    elif is_dataclass(hint):
        schema = of_class(hint)
    elif issubclass(origin, Mapping):
        schema = {"type": "object", "additionalProperties": _of_hint(arguments[1])}
    else:
        schema = {"type": "array", "items": _of_hint(arguments[0])}
    return schema


def _document(current: int, description: str, keys: Mapping[str, Schema], *optional: str) -> Schema:
    """Return the schema of a document of a format."""
    format_key = {"description": "the format of this document", "const": current}
    return record(description, {formats.KEY: format_key, **keys}, optional)


def _output(description: str, keys: Mapping[str, Schema], *optional: str) -> Schema:
    """Return the schema of the output of a task with --json."""
    return _document(formats.JSON_OUTPUT, description, keys, *optional)


_JUDGEMENTS = listed(of_class(Judgement), "what is to be known of the build before it begins")
_STANDING = words(get_args(Standing), "whether a wheel is published, or somebody has built it")
_BECAUSE = text("who has built it, or why nobody is known to have")
_FACT = text("where that is recorded: an address, or a file of build_configs/; empty: nowhere")
_VULNERABILITY = record(
    "a published vulnerability of the package",
    {
        "id": text("its identifier: 'CVE-2025-32434'"),
        "aliases": texts("its other identifiers"),
        "title": text("what goes wrong"),
        "severity": words(get_args(Severity), "the highest of those that sources give"),
        "kind": words(get_args(Kind), "what somebody who uses it gains, at worst"),
        "part": text("what has to be used; empty: not said"),
        "state": words(STATES, "whether the wheel has it"),
        "because": text("the reason for the state"),
        "patches": texts("the patches that fix it"),
        "proven": nullable(text("the day on which a wheel with these patches was tried")),
        "fixed": nullable(text("the first release without it")),
        "disputed": text("who doubts that it is a vulnerability, and why"),
        "disagreement": text("what sources say differently"),
        "commits": texts("commits of upstream that fixed it"),
        "sources": texts("addresses"),
    },
)
_VULNERABILITIES = listed(
    _VULNERABILITY, "the known vulnerabilities of the package, those that the wheel has first"
)
_ESTIMATE = nullable(of_class(Estimate))
_OVERFLOW = nullable(of_class(OverflowRisk))
_PUBLISHED = nullable(
    record(
        "the official wheel that would do as well, or nearly; null if there is none",
        {
            "version": text("its version"),
            "cuda": nullable(text("the toolkit that it was built with")),
            "read": flag("whether the code in it was read"),
            "capabilities": nullable(text("compute capabilities of its own kernels")),
            "capabilities_said": text("compute capabilities in upstream's build script"),
            "verdict": words(get_args(Fit), "whether it would do here"),
            "why": text("why, as a clause; empty if it fits"),
            "command": text("the command that installs it"),
            "remarks": texts("what to read before it is installed"),
            "place": text("of an extension's wheel: where it is, 'PyPI'; else empty"),
            "evidence": text(
                "of an extension's wheel: 'listed', or 'workflow' if nobody read the list; else empty"
            ),
        },
    )
)
_CONTAINER = {
    "missing": text("why no container is possible; there are no other keys then"),
    "image": text("the image"),
    "arch": text("the machine that it plays"),
    "mounts": listed(of_class(Mount), "files and folders of this machine that it sees"),
    "variables": names("variables that are set in it"),
    "passed": texts("variables of the shell that it sees"),
    "commands": listed({"type": "array", "items": {"type": "string"}}, "what runs"),
    "sentences": texts("what is to be known of it"),
}


def _matrix() -> Schema:
    cell = {
        "identifier": text("the session that builds it: 'wheel-3.10-cpu'"),
        "package": text("the package"),
        "python": text("the interpreter: '3.13t'"),
        "variant": text("'cpu', or the toolkit as in 'cu118'"),
        "arch": text("the machine that the wheel is for"),
        "possible": flag("whether it can be built"),
        "reason": nullable(text("why it cannot be built")),
        "standing": _STANDING,
        "because": _BECAUSE,
        "source": _FACT,
    }
    cells = listed(record("one build", cell), "the builds of the releases that were asked for")
    wheel = {
        "python": text("the interpreter that it is for"),
        "version": text("its version, with the local part"),
        "file": text("the name of the file"),
        "command": text("the command that installs it"),
        "place": text("where it is: 'PyPI', 'GitHub'"),
        "evidence": words(get_args(Evidence), "whether its list was read, or only the workflow"),
        "date": nullable(text("the day of the reading")),
        "source": _FACT,
        "capabilities_said": text("TORCH_CUDA_ARCH_LIST as the wheel says; its code was not read"),
        "note": text("what to read before it is installed"),
    }
    torch_cell = {
        "torch": text("the release of torch"),
        "release": nullable(text("the extension's release that goes with it; null if none does")),
        "variant": text("'cpu', or the toolkit as in 'cu118'"),
        "arch": text("the machine that the wheels are for"),
        "standing": _STANDING,
        "pythons": texts("for which it may be built"),
        "reason": text("why it cannot be built; empty if it may"),
        "wheels": listed(record("one wheel", wheel), "wheels that exist, one for each Python"),
    }
    wheels = listed(
        record("one torch and toolkit", torch_cell),
        "with --package of an extension: every torch; else empty",
    )
    return _output(
        "`invoke matrix --json`: which builds there are.", {"cells": cells, "wheels": wheels}
    )


def _build() -> Schema:
    return _output(
        "`invoke build --new-torch --json`: a family of packages for a torch that has appeared.",
        {
            "new": flag("whether there is something to build, or was before this run"),
            "because": text("why there is not; empty if there is"),
            "torch": nullable(text("the version of the new torch; null: none is new")),
            "tag": nullable(text("its tag, for --tag")),
            "facts": nullable(text("the folder of facts that has it, for TORCHMILL_CONFIGS")),
            "cells": listed(of_class(FamilyCell), "the builds, each behind those that it needs"),
            "jobs": listed(of_class(FamilyJob), "the pending builds, as jobs of several machines"),
            "index": nullable(text("the folder of the package index; null: none was written")),
        },
    )


def _explain() -> Schema:
    return _output(
        "`invoke explain --json`: whether a build is possible, and who tried it.",
        {
            "identifier": text("the session that was asked for"),
            "release": text("the release: 'torch 1.13.1'"),
            "standing": _STANDING,
            "because": _BECAUSE,
            "source": _FACT,
            "judgements": _JUDGEMENTS,
            "published": _PUBLISHED,
            "published_vulnerabilities": listed(
                _VULNERABILITY, "those of the official wheel; empty if none is named"
            ),
            "why": text("why no official wheel is named; empty if one is"),
        },
    )


def _explain_variant() -> Schema:
    return _output(
        "`invoke explain --index --json`: which wheel variant a machine gets.",
        {
            "project": text("the project"),
            "version": text("the version that has the variants"),
            "label": text("the label of the variant that it gets; empty: the plain wheel"),
            "expected": text("the same by the order of PEP 825, without asking a client"),
            "client": text("the client that was asked: 'uv 0.13.9'; empty: none"),
            "problem": text("why no client was asked"),
            "variants": names("the label of each variant -> why it gets it, or not"),
            "notes": texts("what was assumed of the machine"),
        },
    )


def _plan() -> Schema:
    shortfall = {
        "what": text("the part"),
        "cost": text("what it costs to be without it"),
        "cure": text("what brings it"),
    }
    environment = {
        "set": names("variables that the build gets"),
        "passed": texts("patterns of variables that it sees of the shell"),
    }
    product = {
        "session": text("the session that was asked for"),
        "file": text("its path in dist/; empty: no file"),
    }
    platform = {
        "exactly": text("the tag that the wheel gets"),
        "at_most": text("the newest tag that the wheel can get"),
    }
    return _output(
        "`invoke plan --json`: what a session would do, and what it would cost.",
        {
            "identifier": text("the session"),
            "package": text("the package"),
            "tag": text("the tag of the release"),
            "commit": nullable(text("the commit of the source")),
            "source": text("the source, for people"),
            "version": text("the version of the wheel"),
            "environment": record("the variables of the build", environment),
            "toolkit": nullable(text("the CUDA toolkit")),
            "libraries": names("libraries from torchmill's cache: name and version"),
            "torch": nullable(text("the torch that a dependent package is built against")),
            "requirements": texts("what pip installs for the build"),
            "kit": texts("what is installed once, for every Python"),
            "patches": texts("patches, in their order"),
            "lacks": listed(
                record("a part", shortfall), "what the official wheel has and this one will not"
            ),
            "vulnerabilities": _VULNERABILITIES,
            "differs": names("how the wheel differs from the official one on purpose"),
            "published": _PUBLISHED,
            "commands": listed({"type": "array", "items": {"type": "string"}}, "what runs"),
            "jobs": whole("compilers at a time if no guard watches them"),
            "wheel": text("the name of the file"),
            "platform": record("the platform tag: one of both", platform, tuple(platform)),
            "estimate": _ESTIMATE,
            "overflow": _OVERFLOW,
            "judgements": _JUDGEMENTS,
            "product": record("what a session such as conda-… makes of the wheel", product),
            "container": record(
                "the container of a build for another machine", _CONTAINER, tuple(_CONTAINER)
            ),
        },
        "product",
        "container",
    )


def _arch() -> Schema:
    driver = nullable(text("the oldest; null: not known"))
    drivers = {
        "linux": {**driver, "description": "the oldest for Linux"},
        "windows": {**driver, "description": "the oldest for Windows"},
        "linux_ptx": {**driver, "description": "the oldest that surely compiles its PTX"},
    }
    newest = {
        "description": "the newest torch, and the newest toolkit of it; null: none",
        "type": ["array", "null"],
        "items": {"type": "string"},
    }
    support = {"type": "object", "additionalProperties": {"type": "string"}}
    runs = by_name({"type": ["string", "null"]}, "other capabilities: 'code', 'PTX', or null")
    capability = {
        "capability": text("the compute capability"),
        "architecture": text("NVIDIA's name"),
        "gpus": texts("GPUs that have it"),
        "toolkits": texts("toolkits that make code for it"),
        "deprecated": texts("toolkits that warn about it"),
        "targets": texts("what compilers call it: '9.0', '9.0a'"),
        "drivers": by_name(record("the drivers", drivers), "by toolkit"),
        "official": by_name(support, "by machine and torch: how official builds run on it"),
        "buildable": newest,
        "tried": {**newest, "description": "the same of what somebody has built"},
        "runs": {**runs, "description": f"how its code runs on {runs['description']}"},
    }
    return _output(
        "`invoke arch --json`: which GPUs, toolkits and releases match. Without a list, a GPU or "
        "--local there are the capabilities alone.",
        {
            "capabilities": listed(record("a compute capability", capability), "the capabilities"),
            "gpus": names("the GPUs that were asked for, with their capabilities"),
            "list": text("TORCH_CUDA_ARCH_LIST, as torch reads it"),
            "published": _PUBLISHED,
            "saving": nullable(text("what a list for the GPUs here saves")),
            "serves": {**runs, "description": f"how the list serves {runs['description']}"},
            "estimate": _ESTIMATE,
            "overflow": _OVERFLOW,
        },
        *("gpus", "list", "published", "saving", "serves", "estimate", "overflow"),
    )


def _doctor() -> Schema:
    finding = of_class(Finding)
    keys = finding["properties"]
    state = keys.pop("state")
    keys = {"subject": keys["subject"], "found": state, **keys}
    finding = record(finding["description"], keys)
    return _output(
        "`invoke doctor --json`: what this machine has and lacks.",
        {
            "subject": text("the build, or the machine"),
            "can_start": flag("whether nothing keeps the build from starting"),
            "findings": listed(finding, "the lines of the table"),
        },
    )


def _jobs() -> Schema:
    limit = {"source": text("who sets it"), "limit": whole("bytes")}
    memory = {"bytes": whole("bytes that can be had"), "source": text("the limit that binds")}
    processors = {"count": whole("processors"), "source": text("the limit that binds")}
    allowed = {
        "memory": record("of all compilers together", memory),
        "processors": record("that are kept busy", processors),
        "slots": whole("compilers that may be started under the guard, most of them waiting"),
    }
    available = whole("bytes that can still be had")
    demand = of_class(CompileDemand, {"unguarded": of_class(JobCount)})
    return _output(
        "`invoke jobs --json`: what limits memory and processors.",
        {
            "memory": listed(of_class(LimitReading, {"available": available}), "of all processes"),
            "memory_of_one_process": listed(record("a limit", limit), "of each process"),
            "processors": listed(of_class(CpuQuota), "limits on processors"),
            "allowed": record("what a build makes of it", allowed),
            "builds": listed(demand, "builds, and their compilers at a time without the guard"),
            "warnings": texts("what is unusual"),
        },
    )


def _shards() -> Schema:
    times = {
        "wall": number("seconds until the wheel is complete"),
        "machine_seconds": number("seconds of all machines together"),
    }
    return _output(
        "`invoke shards --json`: how long a build takes on several machines.",
        {
            "cpu": {**of_class(EstimateSpan), "description": "seconds of processor time"},
            "jobs": whole("compilers at a time on each machine"),
            "longest": number("seconds of the longest compile; 0: not recorded"),
            "advised": whole("the number of machines that is advised"),
            "builds": listed(of_class(SharedBuild, times), "by number of machines"),
        },
    )


def _diagnose() -> Schema:
    cause = {
        "name": text("its name in the catalogue"),
        "candidate": nullable(text("which of its reasons the facts support; null: none, or one")),
        "cause": text("what went wrong"),
        "cure": text("what to do"),
        "command": nullable(text("the first command of the cure")),
        "source": text("where that is from"),
        "line": whole("the line of the log, counted from 1"),
        "text": text("that line"),
        "making": nullable(text("what was being made")),
        "facts": texts("names of the facts that chose the answer, or stand in it"),
    }
    candidate = {
        "name": text("its name"),
        "verdict": text("'supported' or 'unknown'; those that are refuted are left out"),
        "cause": text("what went wrong"),
        "cure": text("what to do"),
        "tell": nullable(text("the command that shows whether it is this one")),
        "unknown": texts("names of the facts that would decide"),
    }
    fact = {
        "name": text("its name"),
        "value": text("its value"),
        "origin": text("'log', 'session', 'collect_env', 'host', 'machine' (this one) or 'rules'"),
        "line": nullable(whole("the line of the log, counted from 1")),
        "text": nullable(text("that line")),
        "basis": texts("names of the facts that a rule computed it from"),
    }
    return _output(
        "`invoke diagnose --json`: why a build failed.",
        {
            "log": text("the log; '-': standard input"),
            "outcome": text("'found'; 'sound': it shows no failure; 'unknown': nobody can tell"),
            "failure": nullable(of_class(BuildFailure)),
            "cause": nullable(record("the cause; null: the catalogue has none", cause)),
            "causes": listed(record("a reason", candidate), "the cause's reasons, the best first"),
            "facts": listed(record("a fact", fact), "what is known of the build and its machine"),
            "contradictions": texts("facts that exclude each other, and which of them count"),
            "probes": texts("commands that would tell the reasons apart"),
            "unread": nullable(text("what was not compared with the catalogue")),
            "succeeds_at": nullable(
                whole("the line of the log that shows success after the failure, from 1")
            ),
        },
    )


def _verify() -> Schema:
    check = {
        "name": text("what is compared"),
        "said": text("what it says"),
        "problems": texts("contradictions"),
        "notes": texts("remarks that are no contradictions"),
        "vouches": flag("whether it is a document of a known format about this very wheel"),
        "ok": flag("whether it has no problem"),
    }
    wheel = {
        "wheel": text("its path"),
        "word": text("the verdict in a word"),
        "ok": flag("whether nothing contradicts another"),
        "checks": listed(record("a check", check), "the checks"),
    }
    return _output(
        "`invoke verify --json`: whether wheels and the files beside them agree.",
        {"wheels": listed(record("a wheel", wheel), "the wheels")},
    )


def _index() -> Schema:
    outcome = of_class(IndexOutcome)["properties"]
    keys = {
        **outcome,
        "index": text("the folder"),
        "wheels": texts("files in it"),
        "older": texts("files that --keep left out"),
        "variants": texts("variants that have a sub-index"),
        "warnings": texts("what is wrong with wheels"),
        "wheel_variants": listed(of_class(VariantCost), "the wheel variants of each version"),
        "channel": text("the folder of a channel: the only key with --conda"),
    }
    return _output("`invoke index --json`: what an index has now.", keys, *keys)


def _publish() -> Schema:
    name = text("the name of the file")
    file = {
        "name": name,
        "sha256": text("its digest"),
        "size": whole("bytes"),
        "said": text("what was done, or would be"),
    }
    older = {"name": name, "said": text("what was done, or would be")}
    return _output(
        "`invoke publish --json`: what was uploaded.",
        {
            "to": text("the target, without its password"),
            "files": listed(record("a file", file), "files"),
            "older": listed(record("a file", older), "files that --keep leaves out or removes"),
        },
    )


_STORED = record(
    "something that is stored",
    {
        "kind": text("its kind, as `invoke clean --kind` takes it"),
        "name": text("its name"),
        "paths": texts("its files and folders"),
        "tag": nullable(text("the release that it belongs to")),
        "size": whole("bytes"),
        "files": whole("files"),
        "used": whole("when it was last needed, in seconds since 1970; 0: not known"),
        "busy": text("who uses it, as a clause; empty: nobody"),
    },
)


def _status() -> Schema:
    disk = {
        "folder": text("a folder on it"),
        "total": whole("bytes of the disk"),
        "free": whole("bytes that are free"),
    }
    return _output(
        "`invoke status --json`: what is stored where.",
        {
            "stored": listed(_STORED, "everything"),
            "size": whole("bytes of all; files with several names count once"),
            "leftovers": whole("bytes that an interrupted clean left"),
            "selected": nullable(text("the tag of the selected release")),
            "disks": listed(record("a disk", disk), "the disks that it is on"),
        },
    )


def _clean() -> Schema:
    kept = {"kind": text("its kind"), "name": text("its name"), "why": text("why, as a clause")}
    return _output(
        "`invoke clean --json`: what was removed.",
        {
            "removed": listed(_STORED, "what was removed"),
            "would_be_removed": listed(_STORED, "the same with --dry-run, in its place"),
            "kept": listed(record("something that stays", kept), "what was to go and stays"),
            "freed": whole("bytes"),
        },
        "removed",
        "would_be_removed",
    )


def _toolkit() -> Schema:
    toolkit = {
        "version": text("its version"),
        "home": text("its folder"),
        "by": text("how it was found"),
        "lacks": texts("parts that it lacks"),
    }
    folder = {
        "name": text("its name"),
        "home": text("its folder"),
        "kind": text("what it is: 'toolkit', 'cudnn', 'compiler', …"),
        "version": text("its version as it was asked for"),
        "full": text("its whole version"),
        "provider": text("where it is from"),
        "completes": text("the folder of the toolkit that it completes; empty: none"),
    }
    offer = {
        "what": text("a toolkit, a library or a compiler"),
        "provider": text("who has it"),
        "versions": texts("its versions, oldest first"),
    }
    return _output(
        "`invoke toolkit --json`: toolkits, libraries and compilers.",
        {
            "toolkits": listed(record("a toolkit", toolkit), "of this machine; listed only"),
            "kept": listed(record("a folder", folder), "in torchmill's cache"),
            "available": listed(record("an offer", offer), "what providers have; listed only"),
            "lacks": texts("parts that no provider has; with --complete only"),
        },
        *("toolkits", "available", "lacks"),
    )


def _error() -> Schema:
    error = {
        "code": text("the code in words, which stays when the message changes"),
        "exit_code": whole("the exit code"),
        "message": text("the message"),
        "cure": nullable(text("the first command that the message names")),
    }
    return _output(
        "What any task prints with --json if it fails before it has printed anything.",
        {"error": record("the error", error)},
    )


def _manifest() -> Schema:
    digests = names("name -> sha256")
    static = {"source": text("its path at the build"), "sha256": text("its digest")}
    licence = {"licence": text("SPDX expression; empty: not known"), "files": texts("in the wheel")}
    sizes = by_name({"type": "integer"}, "compute capability -> bytes")
    variant = {
        "label": text("the label at the end of its name"),
        "properties": texts("properties of a machine: 'nvidia :: sm_arch :: 86_real'"),
        "schema": text("the address of the draft that its metadata follow"),
        "library": text("what wrote them: 'variantlib 0.2.2'"),
        "original_gpus": texts("compute capabilities that the wheel it was made of has code for"),
    }
    original = {"wheel": text("its file"), "version": text("its version"), "sha256": text("digest")}
    builder = {
        "id": text("a URI"),
        "invocation": text("the run of a workflow"),
        "torchmill": text("the version"),
    }
    guard = {
        "peak": whole("bytes of all compilers together, at most"),
        "allowed": whole("bytes that they were allowed"),
        "cores": whole("processors"),
        "units": whole("compiles"),
        "pauses": whole("times that a compiler was stopped for a while"),
        "reruns": whole("compiles that were begun again"),
        "kills": whole("compilers that were ended"),
        "short": number("seconds in which memory was short"),
        "timeline": text("the file of the timeline, from dist/"),
    }
    disk = {"tree": whole("bytes"), "outputs": whole("bytes"), "environment": whole("bytes")}
    stages = {stage: of_class(StageRecord) for stage in STAGES}
    debug_info = {
        "file": text("its name"),
        "sha256": text("its digest"),
        "size": whole("bytes"),
        "level": text("full, or lines"),
        "reduced": flag("whether dwz removed what it says twice"),
        "libraries": names("library in the wheel -> its build ID"),
    }
    keys = {
        "identifier": text("the session"),
        "wheel": text("the name of the file"),
        "planned": text("its name with the newest platform tag that is possible"),
        "package": text("the package"),
        "version": text("the version of the wheel"),
        "tag": text("the tag of the release"),
        "commit": nullable(text("the commit that the source was proven to be")),
        "commit_verified": flag("whether it is the recorded commit"),
        "commit_declared": nullable(text("the commit that an archive or a folder names")),
        "unproven": text("why no commit is proven; empty: one is"),
        "contents": text("sha256 of all files of the source"),
        "archive": nullable(text("sha256 of the archive")),
        "git_version": nullable(text("the commit in the version module")),
        "source": text("where the source is from"),
        "repository": text("the repository of the proven commit"),
        "options": by_name({}, "options that the user chose and that can change the wheel"),
        "submodules": names("path -> commit; empty: not proven"),
        "torch": nullable(text("the torch that it is built against")),
        "toolkit": nullable(text("the CUDA toolkit")),
        "toolkit_completed": nullable(text("the folder that completed the toolkit")),
        "processor": nullable(of_class(Processor)),
        "libraries": names("libraries from torchmill's cache: name and version"),
        "cudnn": nullable(text("the version of cuDNN")),
        "switches": names("variables of the build"),
        "patches": texts("patches"),
        "lacks": texts("what the official wheel has and this one has not"),
        "vulnerabilities": _VULNERABILITIES,
        "tools": names("the interpreter: its version, and digests of its files"),
        "key": text("a digest of all inputs"),
        "stages": record("the inputs and products of the stages", stages),
        "sha256": text("the digest of the wheel"),
        "size": whole("bytes of the wheel"),
        "builder": record("who built it", builder, ["invocation"]),
        "requirements": texts("what was installed for the build"),
        "static": listed(record("an archive", static), "archives of the machine that are in it"),
        "edges": whole("edges of ninja that were made"),
        "cpu_seconds": number("seconds of all compilers together"),
        "slots": {"description": "compilers at a time", "type": ["string", "integer"]},
        "guard": nullable(record("what the memory guard did; null: there was none", guard)),
        "cache": nullable(of_class(CacheHits)),
        "network": text("'none', or 'open: ' and the reason"),
        "edits": digests | {"description": "files that were edited in the tree -> sha256"},
        "jobs": whole("compilers at a time without a guard"),
        "seconds": by_name({"type": "number"}, "step -> seconds"),
        "waited": number("seconds in queues"),
        "bundled": listed(
            of_class(BundledLibrary, {"source": text("its path at the build")}),
            "bundled libraries",
        ),
        "origins": names("file of the machine -> the package that it is from, as a purl"),
        "licences": by_name(record("a licence", licence), "by kind and name of a part"),
        "could_be": nullable(text("the oldest platform tag that holds")),
        "notes": texts("remarks of packing"),
        "packing": record(
            "how it was packed",
            {"codec": text("the library and level"), "kept": whole("bytes that were copied")},
            ["kept"],
        ),
        "debug_info": record("the archive beside it, with debug information", debug_info),
        "unlike": texts("differences from wheels of the same version"),
        "checks": by_name(of_class(CheckResult), "by the name of a check"),
        "device_code": by_name(sizes, "by library"),
        "disk": record("bytes that the build has written", disk, ["environment"]),
        "original": record("the wheel that a slim wheel is made of", original),
        "kept_for": texts("compute capabilities that a slim wheel has code for"),
        "wheel_variant": record("what a wheel variant is for", variant, ["original_gpus"]),
        "upstream_tests": _upstream_tests(),
    }
    # A slim wheel has what is known of its original, of which there may be no manifest.
    slim = ("wheel", "version", "sha256", "size", "key", "builder", "package", "tag", "identifier")
    optional = [name for name in keys if name not in slim]
    return _document(
        formats.MANIFEST, "WHEEL.whl.json: how a wheel was made, and of what.", keys, *optional
    )


def _upstream_tests(**further: Schema) -> Schema:
    alone = {
        "why": text("how it fails"),
        "explained": text("why that is to be expected; empty: nobody knows"),
    }
    keys = {
        "at": text("when: ISO 8601"),
        "wheel": text("our wheel"),
        "against": text("the published wheel; empty: an extension's wheel, tried alone"),
        "tests": text("which tests: of what, and the commit or contents that they are from"),
        "seconds": number("that both wheels took together"),
        "unlike": texts("how both differ by intent"),
        "results": by_name({"type": "integer"}, "result -> tests on our wheel"),
        "published": by_name({"type": "integer"}, "result -> tests on the published wheel"),
        outcomes.BOTH: texts("tests"),
        outcomes.THEIRS: texts("tests"),
        outcomes.FLAKY: texts("tests"),
        "alone": by_name(record("a test", alone), "tests that do not pass on our wheel alone"),
    }
    return record("what came of upstream's own tests", keys | further)


def _check_report() -> Schema:
    outcome = {"description": "the result, and why", "type": "array", "items": {"type": "string"}}
    outcomes = by_name(outcome, "every test of our wheel")
    tests = _upstream_tests(outcomes=outcomes)
    return _document(
        formats.PROOF,
        "….json of `nox -s check-…`: every test of upstream's on a wheel.",
        tests["properties"],
    )


def _speed_report() -> Schema:
    ratio = by_name(of_class(speed.SpeedRatio), "by case")
    rounds = {"description": "by side and case: seconds, or why it does not run", "type": "array"}
    return _document(
        formats.PROOF,
        "….json of `nox -s speed-…`: how fast a wheel is, compared with the published one.",
        {
            "at": text("when: ISO 8601"),
            "ours": text("our wheel"),
            "published": text("the published wheel"),
            "unlike": texts("how both differ by intent"),
            "ratios": by_name(ratio, "number of threads -> how many times as fast ours is"),
            "lacking": names("cases that did not run -> why"),
            "rounds": by_name(rounds, "number of threads -> the rounds"),
        },
    )


def _product() -> Schema:
    return _document(
        formats.PRODUCT,
        "PACKAGE.conda.json, ARCHIVE.zip.json: what a product of a wheel was made of.",
        {
            "sha256": text("its digest"),
            "size": whole("bytes"),
            "consumer": text("what a program that links the archive printed"),
            "made_of": listed(names("part -> digest"), "of each wheel that gave these bytes"),
        },
        "consumer",
    )


def _ledger() -> Schema:
    stages = {stage: of_class(StageRecord) for stage in STAGES}
    return _document(
        formats.LEDGER,
        "`ledger` in a cell's outputs: the stages that are done.",
        {"stages": record("by stage", stages, STAGES)},
    )


def _source_record() -> Schema:
    keys = of_class(Source, {"path": {}})["properties"]
    del keys["path"]  # it is where the record lies
    further = {
        "asked": by_name({"type": ["string", "null"]}, "how it was asked for"),
        "fingerprint": of_class(TreeFingerprint),
    }
    return _document(formats.SOURCE_RECORD, "source.json beside a fetched source.", keys | further)


def _shard_record() -> Schema:
    return _document(
        formats.SHARD,
        "parts/shards/3-of-16.json: what a share of a build made.",
        {
            "shard": text("which share: '3/16'"),
            "session": text("the build"),
            "tree": text("the key of the tree"),
            "compiles": whole("compiles of all shares together"),
            "made": whole("compiles of this share that were made"),
            "failed": texts("files of this share that were not made"),
            "seconds": listed({"type": "number"}, "expected seconds of each share"),
        },
    )


OUTPUTS: Mapping[str, Callable[[], Schema]] = {
    "arch": _arch,
    "build": _build,
    "clean": _clean,
    "diagnose": _diagnose,
    "doctor": _doctor,
    "explain": _explain,
    "explain_variant": _explain_variant,
    "index": _index,
    "jobs": _jobs,
    "matrix": _matrix,
    "plan": _plan,
    "publish": _publish,
    "shards": _shards,
    "status": _status,
    "toolkit": _toolkit,
    "verify": _verify,
    "error": _error,
    "manifest": _manifest,
    "product": _product,
    "ledger": _ledger,
    "source_record": _source_record,
    "shard_record": _shard_record,
    "check_report": _check_report,
    "speed_report": _speed_report,
}


def output_schemas() -> dict[str, Schema]:
    """Return every schema by its name."""
    return {name: make() for name, make in OUTPUTS.items()}
