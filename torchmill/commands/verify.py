"""`invoke verify`: check that wheels, manifests, statements and SBOMs agree."""

from collections.abc import Iterable, Mapping, Sequence
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


def verify_wheels(
    layout: Layout,
    *,
    wheel: list[str] | None = None,
    original: str = "",
    write: bool = False,
    key: list[str] | None = None,
    identity: str = "",
    issuer: str = "",
    trusted_root: str = "",
) -> CommandOutput:
    """Return whether wheels, their manifests, statements, SBOMs and contents agree.

    A sound wheel is accepted even if nothing says who made it, unless --key or --identity names
    whose signature it must have. With `write`, missing statements and SBOMs are written first.
    """
    files = named_wheels(layout, wheel or ())
    if write:
        # Before the wheels are examined, so that the new documents are, too.
        write_missing(files)
    original_wheel = Path(original) if original else None
    if original_wheel and not original_wheel.is_file():
        raise ConfigError(f"--original {original_wheel}: no such file", code="not-a-wheel")
    signers = signature.read_public_keys(key or ())
    if identity or issuer or trusted_root:
        sigstore = signature.read_identity(identity, issuer, trusted_root)
        signers = replace(sigstore, keys=signers.keys)
    verdicts = []
    for file in files:
        verdict = agreement.examine_wheel(file, original_wheel)
        # Neither is part of `examine_wheel`, which others use: who signed is a question of the user,
        # and the processor is that of this machine.
        verdict = signature.add_check(verdict, signers)
        verdicts.append(_with_processor(verdict))
    lines = []
    for verdict in verdicts:
        lines.append(f"{verdict.wheel.name}: {verdict.sentence}")
        lines += [f"  {check.text}" for check in verdict.checks]
    return CommandOutput(
        "\n".join(lines),
        {"wheels": [_as_data(verdict) for verdict in verdicts]},
        require=partial(require_sound, verdicts),
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
    """Raise DeliveryError, which names every problem of every wheel, if there is any."""
    unsound = [verdict for verdict in verdicts if verdict.problems]
    if len(unsound) == 1:
        unsound[0].require()  # raises an error that is about this wheel alone
    if unsound:
        head = (
            f"{len(unsound)} of {len(verdicts)} wheels are not what they claim to be; do not use "
            "them:"
        )
        raise DeliveryError("\n  ".join([head, *map(str, unsound)]), code="wheels-disagree")


def _with_processor(verdict: AgreementVerdict) -> AgreementVerdict:
    """Return a verdict that also has whether this machine's processor can run the wheel.

    The verdict stays as it is for a wheel that was not built for one processor (--cpu).
    """
    processor = dist_files.read_manifest(verdict.wheel).get("processor")
    if processor is None:
        return verdict
    try:
        problems = processor_problems(processor["needs"], processor_flags())
        summary = f"{processor['name']}, which this machine runs"
        check = AgreementCheck("processor", summary, problems)
    except agreement.DOCUMENT_ERRORS as error:
        check = agreement.damaged_check("processor", error)
    return replace(verdict, checks=(*verdict.checks, check))


def named_wheels(layout: Layout, names: Sequence[str]) -> list[Path]:
    """Return the wheels that paths name, each once: of wheels or of folders; by default dist/'s.

    Raises ConfigError for a path that is neither, DeliveryError for a folder without wheels.
    """
    if not names:
        return _wheels_of_folder(layout.dist)
    files: list[Path] = []
    for path in map(Path, names):
        if not path.exists():
            raise _not_a_wheel(path, "no such file")
        if not path.is_file():
            files += _wheels_of_folder(path)
        elif path.suffix == ".whl":
            files.append(path)
        else:
            raise _not_a_wheel(path, "not a wheel")
    return list(dict.fromkeys(files))  # a wheel may be named by itself and by its folder


def _not_a_wheel(path: Path, problem: str) -> ConfigError:
    """Return the error for a path that is neither a wheel nor a folder."""
    return ConfigError(f"{path}: {problem}: name wheels, or folders of them", code="not-a-wheel")


def _wheels_of_folder(folder: Path) -> list[Path]:
    """Return the wheels in a folder. Raises DeliveryError if it has none."""
    wheels = wheel_file.list_wheels(folder)
    if not wheels:
        raise DeliveryError(
            f"{folder} has no wheels: build one with nox, or name another folder",
            code="no-wheels",
        )
    return wheels


def write_missing(wheels: Iterable[Path]) -> None:
    """Write the documents that are missing beside wheels.

    Nothing is written if the manifest is of another wheel or of another format than this torchmill
    writes: `examine_wheel` reports that. Raises HostError if a file cannot be written.
    """
    for wheel in wheels:
        files = [dist_files.document_path(wheel, suffix) for suffix in dist_files.DOCUMENT_SUFFIXES]
        if all(file.exists() for file in files):
            continue
        for suffix, content in _compose_documents(wheel).items():
            file = dist_files.document_path(wheel, suffix)
            with report_unwritable(file):
                # A document that exists stays, even if it is wrong: the examination will say so.
                if not file.exists():
                    write_atomically(file, content)


def _compose_documents(wheel: Path) -> Mapping[str, bytes]:
    """Return a wheel's statement and SBOM, by suffix; {} without a manifest of this format."""
    try:
        manifest = finished_wheel.read_wheel(wheel).manifest
        if not manifest or formats.judge_format(manifest, formats.MANIFEST) != "same":
            return {}
        return dist_files.compose_documents(manifest, wheel)
    except (WheelError, *agreement.DOCUMENT_ERRORS):
        return {}
