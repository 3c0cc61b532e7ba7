"""The in-toto statement of a wheel with SLSA provenance, unsigned; its builder and materials.

https://github.com/in-toto/attestation/blob/main/spec/v1/statement.md, https://slsa.dev/spec/v1.0/provenance
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

from packageurl import PackageURL

from torchmill.config.build import SPEED_ONLY_SWITCHES
from torchmill.core import formats
from torchmill.core.suite_version import suite_version

STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "https://slsa.dev/provenance/v1"
BUILD_TYPE = "urn:torchmill:build:v1"  # docs/explanation/provenance.md describes its parameters

SOURCE_KIND, SUBMODULE_KIND, PATCH_KIND, EDIT_KIND = "source", "submodule", "patch", "local edit"
BUNDLED_KIND, STATIC_KIND = "bundled library", "static library"
TOOLKIT_KIND, ORIGINAL_KIND = "toolkit", "original wheel"
INTERPRETER_KIND, REQUIREMENT_KIND = "interpreter", "requirement"

_REMOTE = re.compile(r"(https?|git|ssh|file)://\S+")
_GITHUB = re.compile(r"https://github\.com/([\w.-]+)/([\w.-]+?)(?:\.git)?/?")
CAVEAT = "caveat"  # the annotation that says what was not proven
LOCAL_BUILDER = "urn:torchmill:local"  # nobody vouches for the machine
_GITHUB_ACTIONS = ("GITHUB_SERVER_URL", "GITHUB_REPOSITORY", "GITHUB_WORKFLOW_REF", "GITHUB_RUN_ID")


@dataclass(frozen=True, slots=True)
class Material:
    """Something that went into a wheel, or was needed to build it."""

    kind: str
    name: str
    version: str = ""
    purl: PackageURL | None = None
    uri: str = ""  # where it was fetched from, if `purl` does not say so
    digest: Mapping[str, str] = field(
        default_factory=dict
    )  # "gitCommit" or "sha256" -> hexadecimal
    notes: Mapping[str, str] = field(default_factory=dict)


def compose_statement(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Return the statement of the wheel that a manifest describes; it names no time and nothing random."""
    builder, switches = manifest.get("builder", {}), manifest.get("switches", {})
    decided = {  # by torchmill, without what cannot change the wheel
        formats.KEY: formats.STATEMENT,
        "version": manifest["version"],
        "switches": {
            name: value for name, value in switches.items() if name not in SPEED_ONLY_SWITCHES
        },
        "toolkit": manifest.get("toolkit"),
        "libraries": dict(manifest.get("libraries", {})),
        "torch": manifest.get("torch"),
        "network": str(manifest.get("network", "unknown")).partition(":")[0],  # that the build had
    }
    return {
        "_type": STATEMENT_TYPE,
        "subject": [{"name": manifest["wheel"], "digest": {"sha256": manifest["sha256"]}}],
        "predicateType": PREDICATE_TYPE,
        "predicate": {
            "buildDefinition": {
                "buildType": BUILD_TYPE,
                "externalParameters": {
                    "identifier": manifest["identifier"],
                    "package": manifest["package"],
                    "tag": manifest["tag"],
                    "options": dict(manifest.get("options", {})),
                    **({"kept_for": manifest["kept_for"]} if "kept_for" in manifest else {}),
                },
                "internalParameters": decided,
                "resolvedDependencies": [
                    _resource_descriptor(each) for each in list_materials(manifest)
                ],
            },
            "runDetails": {
                "builder": {
                    "id": builder.get("id", LOCAL_BUILDER),
                    "version": {"torchmill": builder.get("torchmill", "unknown")},
                },
                "metadata": {"invocationId": builder.get("invocation") or manifest["key"]},
            },
        },
    }


def canonical_json(statement: Mapping[str, Any]) -> bytes:
    """Return the canonical bytes of a statement, which a DSSE envelope holds and signs."""
    return json.dumps(statement, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def _resource_descriptor(material: Material) -> dict[str, Any]:
    descriptor: dict[str, Any] = {"name": material.name}
    if uri := material.uri or (material.purl.to_string() if material.purl else ""):
        descriptor["uri"] = uri
    if material.digest:
        descriptor["digest"] = dict(material.digest)
    descriptor["annotations"] = {"kind": material.kind, **material.notes}
    return descriptor


def list_materials(manifest: Mapping[str, Any]) -> Iterator[Material]:
    """Yield everything that a manifest says the wheel was made of or with, in a fixed order.

    A slim wheel was made of another one, which nothing may be known of but its digest.
    """
    if original := manifest.get("original"):
        package, version, name = manifest["package"], original["version"], original["wheel"]
        purl = PackageURL("pypi", name=package, version=version, qualifiers={"file_name": name})
        yield Material(ORIGINAL_KIND, name, version, purl, digest={"sha256": original["sha256"]})
    if not original or "source" in manifest:
        yield _source(manifest)
    for path, commit in sorted(manifest.get("submodules", {}).items()):
        where = PurePath(path)
        namespace = where.parent.as_posix() if len(where.parts) > 1 else None
        purl = PackageURL("generic", namespace=namespace, name=where.name, version=commit or None)
        digest, notes = (
            {"gitCommit": commit} if commit else {},
            {} if commit else {CAVEAT: "no commit is proven"},
        )
        yield Material(SUBMODULE_KIND, path, commit, purl=purl, digest=digest, notes=notes)
    parts = manifest.get("stages", {}).get("compile", {}).get("parts", {})
    for name in manifest.get("patches", ()):
        sha256 = parts.get(f"patch {name}")
        yield Material(PATCH_KIND, name, digest={"sha256": sha256} if sha256 else {})
    for path, sha256 in sorted(dict(manifest.get("edits") or {}).items()):
        yield Material(EDIT_KIND, path, digest={"sha256": sha256})
    yield from _build_tools(manifest)
    yield from _bundled(manifest)


def _source(manifest: Mapping[str, Any]) -> Material:
    """Return the fetched source: with its commit only if that was proven, else with the digest of what it held."""
    origin, commit = str(manifest.get("source") or ""), str(manifest.get("commit") or "")
    package, tag = str(manifest.get("package")), str(manifest.get("tag"))
    notes = {"origin": origin, "commit proven": "yes" if commit else "no"}
    if caveat := source_caveat(manifest):
        notes[CAVEAT] = caveat
    if not commit:
        contents, archive = str(manifest.get("contents") or ""), str(manifest.get("archive") or "")
        if contents:
            notes["contents sha256"] = contents  # over names, modes and contents of all files
        purl = PackageURL("generic", name=package, version=tag)
        digest = {"sha256": archive or contents} if archive or contents else {}
        return Material(SOURCE_KIND, package, tag, purl, digest=digest, notes=notes)
    match = _REMOTE.match(origin)
    remote = match[0] if match else ""
    uri = f"git+{remote}@{tag}" if remote.endswith(".git") else ""
    purl = PackageURL("generic", name=package, version=commit)
    if github := _GITHUB.fullmatch(remote):
        purl = PackageURL("github", namespace=github[1], name=github[2], version=commit)
    return Material(SOURCE_KIND, package, tag, purl, uri, {"gitCommit": commit}, notes)


def source_caveat(manifest: Mapping[str, Any]) -> str:
    """Return what keeps the source from being a commit's, as a sentence without its full stop; "" for nothing."""
    if not manifest.get("commit"):
        declared = (
            f"; it is said to be {manifest['commit_declared']}"
            if manifest.get("commit_declared")
            else ""
        )
        return f"not proven to be any commit: {manifest.get('unproven') or 'nothing is known of it'}{declared}"
    if edits := sorted(dict(manifest.get("edits") or {})):
        return f"changed after it was fetched: {', '.join(edits)}"
    return ""


def _build_tools(manifest: Mapping[str, Any]) -> Iterator[Material]:
    """Yield the interpreter's program, libraries and header, the toolkit, and the packages for the build."""
    tools = dict(manifest.get("tools", {}))
    version = str(tools.pop("version", "")).partition(" ")[0]
    for name, sha256 in sorted(tools.items()):
        purl = PackageURL("generic", name="python", version=version, subpath=name)
        yield Material(INTERPRETER_KIND, name, version, purl=purl, digest={"sha256": sha256})
    pieces = {"cuda": manifest["toolkit"]} if manifest.get("toolkit") else {}
    for name, version in {**pieces, **dict(sorted(manifest.get("libraries", {}).items()))}.items():
        yield Material(
            TOOLKIT_KIND, name, version, purl=PackageURL("generic", name=name, version=version)
        )
    for line in sorted(manifest.get("requirements", ())):
        name, _, version = line.partition("==")
        purl = PackageURL("pypi", name=name, version=version or None)
        yield Material(REQUIREMENT_KIND, name, version, purl=purl)


def _bundled(manifest: Mapping[str, Any]) -> Iterator[Material]:
    """Yield the libraries of the machine that were bundled, as they were before any edit, or linked in."""
    origins = manifest.get("origins", {})
    libraries = [*manifest.get("bundled", ()), *manifest.get("static", ())]
    for library in sorted(libraries, key=lambda library: library.get("path", library["source"])):
        package = origins.get(library["source"])
        purl = PackageURL.from_string(package) if package else None
        version = (purl.version or "") if purl else ""
        digest, notes = (
            {"sha256": library["sha256"]},
            {"path": library["path"]} if "path" in library else {},
        )
        kind, name = BUNDLED_KIND if notes else STATIC_KIND, PurePath(library["source"]).name
        yield Material(kind, name, version, purl, digest=digest, notes=notes)


def describe_builder(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the builder as a manifest records it: "id" (a URI), "invocation" where it has one.

    TORCHMILL_BUILDER names it; in GitHub Actions it is the workflow, at the commit that runs
    (https://docs.github.com/actions/reference/workflows-and-actions/variables).
    """
    builder = {"id": environ.get("TORCHMILL_BUILDER") or LOCAL_BUILDER}
    if not environ.get("TORCHMILL_BUILDER") and all(environ.get(name) for name in _GITHUB_ACTIONS):
        server, repository, workflow, run = (environ[name] for name in _GITHUB_ACTIONS)
        attempt = environ.get("GITHUB_RUN_ATTEMPT", "1")
        invocation = f"{server}/{repository}/actions/runs/{run}/attempts/{attempt}"
        builder = {"id": f"{server}/{workflow}", "invocation": invocation}
    return {**builder, "torchmill": suite_version()}
