"""The in-toto statement of a wheel with SLSA provenance, unsigned; its builder and materials.

The statement says in a form that other programs read who built a wheel (the builder), with which
parameters, and from which files (the materials). All of it is taken from the wheel's manifest.

https://github.com/in-toto/attestation/blob/main/spec/v1/statement.md
https://slsa.dev/spec/v1.0/provenance
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

# The kinds of materials.
SOURCE_KIND = "source"
SUBMODULE_KIND = "submodule"
PATCH_KIND = "patch"
EDIT_KIND = "local edit"
BUNDLED_KIND = "bundled library"
STATIC_KIND = "static library"
TOOLKIT_KIND = "toolkit"
ORIGINAL_KIND = "original wheel"
INTERPRETER_KIND = "interpreter"
REQUIREMENT_KIND = "requirement"

CAVEAT = "caveat"  # the annotation that says what was not proven
LOCAL_BUILDER = "urn:torchmill:local"  # nobody vouches for the machine
_REMOTE = re.compile(r"(https?|git|ssh|file)://\S+")
_GITHUB = re.compile(r"https://github\.com/([\w.-]+)/([\w.-]+?)(?:\.git)?/?")
_GITHUB_ACTIONS = ("GITHUB_SERVER_URL", "GITHUB_REPOSITORY", "GITHUB_WORKFLOW_REF", "GITHUB_RUN_ID")


@dataclass(frozen=True, slots=True)
class Material:
    """Something that went into a wheel, or was needed to build it."""

    kind: str
    name: str
    version: str = ""
    purl: PackageURL | None = None
    uri: str = ""  # the address that it was fetched from; "": `purl` stands for it
    digest: Mapping[str, str] = field(default_factory=dict)  # "gitCommit" or "sha256" -> hex
    notes: Mapping[str, str] = field(default_factory=dict)  # annotations: "origin", CAVEAT, …


def compose_statement(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Return the statement of the wheel that a manifest describes.

    It has no time and nothing random: the same manifest gives the same statement.
    """
    builder = manifest.get("builder", {})
    run_details = {
        "builder": {
            "id": builder.get("id", LOCAL_BUILDER),
            "version": {"torchmill": builder.get("torchmill", "unknown")},
        },
        # A local build has no URI of its run: the digest of its inputs tells it from others.
        "metadata": {"invocationId": builder.get("invocation") or manifest["key"]},
    }
    return {
        "_type": STATEMENT_TYPE,
        "subject": [{"name": manifest["wheel"], "digest": {"sha256": manifest["sha256"]}}],
        "predicateType": PREDICATE_TYPE,
        "predicate": {
            "buildDefinition": {
                "buildType": BUILD_TYPE,
                "externalParameters": _user_parameters(manifest),
                "internalParameters": _computed_parameters(manifest),
                "resolvedDependencies": [
                    _resource_descriptor(material) for material in list_materials(manifest)
                ],
            },
            "runDetails": run_details,
        },
    }


def _user_parameters(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters that the user chose."""
    parameters = {
        "identifier": manifest["identifier"],
        "package": manifest["package"],
        "tag": manifest["tag"],
        "options": dict(manifest.get("options", {})),
    }
    if "kept_for" in manifest:  # the GPUs that a slim wheel still has code for
        parameters["kept_for"] = manifest["kept_for"]
    if "wheel_variant" in manifest:  # the machines that a wheel variant is for
        parameters["wheel_variant"] = manifest["wheel_variant"]
    return parameters


def _computed_parameters(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters that torchmill decided, without those that cannot change the wheel."""
    switches = {}
    for name, value in manifest.get("switches", {}).items():
        if name not in SPEED_ONLY_SWITCHES:
            switches[name] = value
    return {
        formats.KEY: formats.STATEMENT,
        "version": manifest["version"],
        "switches": switches,
        "toolkit": manifest.get("toolkit"),
        "libraries": dict(manifest.get("libraries", {})),
        "torch": manifest.get("torch"),
        # "none", or "open: REASON", whose reason says something of the machine, not of the wheel
        "network": str(manifest.get("network", "unknown")).partition(":")[0],
    }


def canonical_json(statement: Mapping[str, Any]) -> bytes:
    """Return the canonical bytes of a statement, which a DSSE envelope holds and signs."""
    return json.dumps(statement, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def _resource_descriptor(material: Material) -> dict[str, Any]:
    """Return a material as the statement has it (ResourceDescriptor of in-toto)."""
    descriptor: dict[str, Any] = {"name": material.name}
    uri = material.uri
    if not uri and material.purl is not None:
        uri = material.purl.to_string()
    if uri:
        descriptor["uri"] = uri
    if material.digest:
        descriptor["digest"] = dict(material.digest)
    descriptor["annotations"] = {"kind": material.kind, **material.notes}
    return descriptor


def list_materials(manifest: Mapping[str, Any]) -> Iterator[Material]:
    """Yield the materials of a wheel, from its manifest, in a fixed order.

    Materials are what the wheel contains, and what it was built with. A slim wheel was made of
    another wheel, its original.
    """
    original = manifest.get("original")
    if original:
        yield _original_wheel(manifest["package"], original)
    # The source of a slim wheel is that of its original. If torchmill did not build the original,
    # the source is not known.
    if not original or "source" in manifest:
        yield _source(manifest)
    for path, commit in sorted(manifest.get("submodules", {}).items()):
        yield _submodule(path, commit)
    # The digests of patches are among the inputs of the stage that compiles.
    inputs = manifest.get("stages", {}).get("compile", {}).get("inputs", {})
    for name in manifest.get("patches", ()):
        sha256 = inputs.get(f"patch {name}")
        yield Material(PATCH_KIND, name, digest={"sha256": sha256} if sha256 else {})
    for path, sha256 in sorted(dict(manifest.get("edits") or {}).items()):
        yield Material(EDIT_KIND, path, digest={"sha256": sha256})
    yield from _build_tools(manifest)
    yield from _libraries(manifest)


def _original_wheel(package: str, original: Mapping[str, Any]) -> Material:
    """Return the wheel that a slim wheel was made of."""
    version = original["version"]
    name = original["wheel"]
    purl = PackageURL("pypi", name=package, version=version, qualifiers={"file_name": name})
    return Material(ORIGINAL_KIND, name, version, purl, digest={"sha256": original["sha256"]})


def _submodule(path: str, commit: str) -> Material:
    """Return a submodule of the source; `commit` is "" if none is proven."""
    parts = PurePath(path)
    namespace = parts.parent.as_posix() if len(parts.parts) > 1 else None
    purl = PackageURL("generic", namespace=namespace, name=parts.name, version=commit or None)
    if commit:
        return Material(SUBMODULE_KIND, path, commit, purl, digest={"gitCommit": commit})
    return Material(SUBMODULE_KIND, path, "", purl, notes={CAVEAT: "no commit is proven"})


def _source(manifest: Mapping[str, Any]) -> Material:
    """Return the fetched source, by its commit if that is proven, else by a sha256."""
    commit = str(manifest.get("commit") or "")
    notes = {
        "origin": str(manifest.get("source") or ""),
        "commit proven": "yes" if commit else "no",
    }
    caveat = source_caveat(manifest)
    if caveat:
        notes[CAVEAT] = caveat
    if commit:
        return _proven_source(manifest, commit, notes)
    return _unproven_source(manifest, notes)


def _proven_source(manifest: Mapping[str, Any], commit: str, notes: Mapping[str, str]) -> Material:
    """Return a source whose files are proven to be those of a commit."""
    package = str(manifest.get("package"))
    tag = str(manifest.get("tag"))
    match = _REMOTE.match(notes["origin"])
    remote = match[0] if match else ""
    uri = f"git+{remote}@{tag}" if remote.endswith(".git") else ""
    purl = PackageURL("generic", name=package, version=commit)
    github = _GITHUB.fullmatch(remote)
    if github is not None:
        purl = PackageURL("github", namespace=github[1], name=github[2], version=commit)
    return Material(SOURCE_KIND, package, tag, purl, uri, {"gitCommit": commit}, notes)


def _unproven_source(manifest: Mapping[str, Any], notes: Mapping[str, str]) -> Material:
    """Return a source without a proven commit, with the sha256 of its archive or its files."""
    package = str(manifest.get("package"))
    tag = str(manifest.get("tag"))
    contents = str(manifest.get("contents") or "")
    if contents:
        # over names, modes and contents of all files
        notes = {**notes, "contents sha256": contents}
    sha256 = str(manifest.get("archive") or "") or contents
    digest = {"sha256": sha256} if sha256 else {}
    purl = PackageURL("generic", name=package, version=tag)
    return Material(SOURCE_KIND, package, tag, purl, digest=digest, notes=notes)


def source_caveat(manifest: Mapping[str, Any]) -> str:
    """Return why the source is not proven to be a commit's, without a full stop; "" if it is."""
    if not manifest.get("commit"):
        reason = manifest.get("unproven") or "nothing is known of it"
        declared = manifest.get("commit_declared")
        if declared:
            reason = f"{reason}; it is said to be {declared}"
        return f"not proven to be any commit: {reason}"
    edits = sorted(dict(manifest.get("edits") or {}))
    if edits:
        return f"changed after it was fetched: {', '.join(edits)}"
    return ""


def _build_tools(manifest: Mapping[str, Any]) -> Iterator[Material]:
    """Yield the interpreter's files, the toolkit and its libraries, and the build's packages."""
    # "tools" has the interpreter's sys.version under "version", and the sha256 of files by name.
    tools = dict(manifest.get("tools", {}))
    version = str(tools.pop("version", "")).partition(" ")[0]
    for name, sha256 in sorted(tools.items()):
        purl = PackageURL("generic", name="python", version=version, subpath=name)
        yield Material(INTERPRETER_KIND, name, version, purl=purl, digest={"sha256": sha256})
    toolkit_versions = dict(sorted(manifest.get("libraries", {}).items()))  # cuDNN, NCCL, …
    if manifest.get("toolkit"):
        toolkit_versions = {"cuda": manifest["toolkit"]} | toolkit_versions
    for name, version in toolkit_versions.items():
        purl = PackageURL("generic", name=name, version=version)
        yield Material(TOOLKIT_KIND, name, version, purl=purl)
    for line in sorted(manifest.get("requirements", ())):
        name, _, version = line.partition("==")
        purl = PackageURL("pypi", name=name, version=version or None)
        yield Material(REQUIREMENT_KIND, name, version, purl=purl)


def _libraries(manifest: Mapping[str, Any]) -> Iterator[Material]:
    """Yield the libraries of the machine that were bundled or linked statically.

    A bundled library is edited (its name, its run path). The digest here is that of the file on the
    machine, before the edits.
    """
    origins = manifest.get("origins", {})  # the system's package that a file is from, as a purl
    libraries = [*manifest.get("bundled", ()), *manifest.get("static", ())]
    for library in sorted(libraries, key=lambda library: library.get("path", library["source"])):
        package = origins.get(library["source"])
        purl = PackageURL.from_string(package) if package else None
        version = (purl.version or "") if purl else ""
        kind = STATIC_KIND
        notes = {}
        if "path" in library:  # its place in the wheel; a static library has none
            kind = BUNDLED_KIND
            notes["path"] = library["path"]
        name = PurePath(library["source"]).name
        digest = {"sha256": library["sha256"]}
        yield Material(kind, name, version, purl, digest=digest, notes=notes)


def describe_builder(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the builder as a manifest records it.

    The keys are "id", a URI, "torchmill", its version, and in GitHub Actions "invocation", the
    address of the run. The builder is the URI in TORCHMILL_BUILDER. Without that variable it is, in
    GitHub Actions, the workflow at the commit that runs
    (https://docs.github.com/actions/reference/workflows-and-actions/variables), and elsewhere
    LOCAL_BUILDER.
    """
    version = suite_version()
    builder = environ.get("TORCHMILL_BUILDER")
    if builder:
        return {"id": builder, "torchmill": version}
    if not all(environ.get(name) for name in _GITHUB_ACTIONS):
        return {"id": LOCAL_BUILDER, "torchmill": version}
    server, repository, workflow, run = (environ[name] for name in _GITHUB_ACTIONS)
    attempt = environ.get("GITHUB_RUN_ATTEMPT", "1")
    return {
        "id": f"{server}/{workflow}",
        "invocation": f"{server}/{repository}/actions/runs/{run}/attempts/{attempt}",
        "torchmill": version,
    }
