"""`invoke verify`: check that wheels, manifests, statements and SBOMs agree."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from millpress import wheel_file
from millpress.errors import WheelError

from torchmill.commands.command import CommandOutput
from torchmill.core import formats
from torchmill.core.atomic_writes import write_atomically
from torchmill.core.errors import ConfigError, DeliveryError
from torchmill.core.paths import Layout
from torchmill.core.system_errors import report_unwritable
from torchmill.deliver import agreement, signature
from torchmill.deliver.agreement import AgreementCheck, AgreementVerdict
from torchmill.host.native import processor_flags
from torchmill.host.processor import processor_problems
from torchmill.wheel import dist_files, finished_wheel


def verify_wheels(  # noqa: PLR0917 - every one is an option
    layout: Layout,
    wheel: list[str] | None = None,
    original: str = "",
    write: bool = False,
    key: list[str] | None = None,
    identity: str = "",
    issuer: str = "",
    trusted_root: str = "",
) -> CommandOutput:
    """Check that wheels, manifests, statements, SBOMs, contents agree.

    Ends well for a sound wheel, whether or not anything says who made it: --key and --identity demand that.
    """
    files = named_wheels(layout, wheel or ())
    if write:
        write_missing(files)
    named = Path(original) if original else None
    if named and not named.is_file():
        raise ConfigError(f"--original {named}: no such file", code="not-a-wheel")
    signers = signature.read_public_keys(key or ())
    if identity or issuer or trusted_root:
        signers = replace(
            signature.read_identity(identity, issuer, trusted_root), keys=signers.keys
        )
    verdicts = [
        _with_processor(signature.add_check(agreement.examine_wheel(file, named), signers))
        for file in files
    ]
    lines = []
    for one in verdicts:
        lines += [f"{one.wheel.name}: {one.sentence}", *(f"  {check.text}" for check in one.checks)]
    return CommandOutput(
        "\n".join(lines),
        {"wheels": list(map(_as_data, verdicts))},
        partial(require_sound, verdicts),
    )


def _as_data(verdict: AgreementVerdict) -> dict[str, object]:
    """Return a verdict as JSON-ready data."""
    checks = []
    for check in verdict.checks:
        fields = {
            "name": check.name,
            "said": check.summary,
            "problems": check.problems,
            "notes": check.notes,
            "vouches": check.vouches,
            "ok": not check.problems,
        }
        checks.append(fields)
    return {
        "wheel": str(verdict.wheel),
        "word": verdict.status,
        "ok": not verdict.problems,
        "checks": checks,
    }


def require_sound(verdicts: Sequence[AgreementVerdict]) -> None:
    """Raise DeliveryError that names every problem of every wheel."""
    wrong = [one for one in verdicts if one.problems]
    if len(wrong) == 1:
        wrong[0].require()
    if wrong:
        head = f"{len(wrong)} of {len(verdicts)} wheels are not what they claim to be; do not use them:"
        raise DeliveryError("\n  ".join([head, *map(str, wrong)]), code="wheels-disagree")


def _with_processor(verdict: AgreementVerdict) -> AgreementVerdict:
    """Add whether this machine can run a wheel that was built for one processor."""
    wanted = dist_files.read_manifest(verdict.wheel).get("processor")
    if wanted is None:
        return verdict
    try:
        problems = processor_problems(wanted["needs"], processor_flags())
        check = AgreementCheck("processor", f"{wanted['name']}, which this machine runs", problems)
    except agreement.DOCUMENT_ERRORS as error:
        check = agreement.damaged_check("processor", error)
    return replace(verdict, checks=(*verdict.checks, check))


def named_wheels(layout: Layout, names: Sequence[str]) -> list[Path]:
    """Return the wheels that are named, or lie in folders that are, by default dist/, each once.

    Raises ConfigError for what is neither, DeliveryError for a folder without wheels.
    """
    files: list[Path] = []
    for named in map(Path, names or [str(layout.dist)]):
        if (names and not named.exists()) or (named.is_file() and named.suffix != ".whl"):
            what = "not a wheel" if named.exists() else "no such file"
            raise ConfigError(
                f"{named}: {what}: name wheels, or folders of them", code="not-a-wheel"
            )
        found = [named] if named.is_file() else wheel_file.list_wheels(named)
        if not found:
            raise DeliveryError(
                f"{named} has no wheels: build one with nox, or name another folder",
                code="no-wheels",
            )
        files += found
    return list(dict.fromkeys(files))


def write_missing(wheels: Iterable[Path]) -> None:
    """Write the documents that are missing beside wheels.

    Only if the manifest is of this very wheel, and of the format that is written now; what is wrong with either,
    `examine_wheel` reports. Raises HostError if the disk refuses.
    """
    for wheel in wheels:
        files = [dist_files.document_path(wheel, suffix) for suffix in dist_files.DOCUMENT_SUFFIXES]
        if all(file.exists() for file in files):
            continue
        try:
            manifest = finished_wheel.read_wheel(wheel).manifest
            known = manifest and formats.judge_format(manifest, formats.MANIFEST) == "same"
            documents = dist_files.compose_documents(manifest, wheel) if known else {}
        except (WheelError, *agreement.DOCUMENT_ERRORS):
            documents = {}
        for suffix, content in documents.items():
            file = dist_files.document_path(wheel, suffix)
            with report_unwritable(file):
                if not file.exists():
                    write_atomically(file, content)
