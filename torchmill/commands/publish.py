"""`invoke publish`: bring verified wheels to the place that --to names.

Nothing that is published is ever replaced.
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from millpress import wheel_file
from packaging.utils import canonicalize_name

from torchmill.commands.command import CommandOutput
from torchmill.core.errors import ConfigError, DeliveryError, TorchmillError
from torchmill.core.paths import Layout
from torchmill.core.plain_text import as_plain_text
from torchmill.core.system_errors import report_unwritable
from torchmill.core.units import format_bytes
from torchmill.deliver import agreement, retention, signature
from torchmill.deliver.agreement import VOUCHED, AgreementVerdict
from torchmill.deliver.publish import targets, upload_set
from torchmill.deliver.publish.upload_set import PublishTarget, UploadFile
from torchmill.deliver.signature import Signers
from torchmill.wheel import finished_wheel
from torchmill.wheel.dist_files import DOCUMENT_SUFFIXES, MANIFEST_SUFFIX, SIGNATURE_SUFFIXES
from torchmill.wheel.finished_wheel import FinishedWheel


def publish_wheels(
    layout: Layout,
    *,
    to: str = "",
    name: list[str] | None = None,
    variant: str = "",
    tag: str = "",
    dist: str = "",
    simple: str = "",
    sign_key: str = "",
    manifest: bool = False,
    keep: str = "",
    dry_run: bool = False,
) -> CommandOutput:
    """Publish verified wheels, and return the outcome of each file.

    With `keep`, older wheels at the target are removed at the end. With `dry_run`, nothing is
    signed, uploaded or removed. Raises ConfigError for options that the target cannot follow,
    DeliveryError if a wheel is refused: then nothing is uploaded.
    """
    target = targets.choose_target(to, os.environ, simple)
    most = retention.parse_keep(keep)
    refuse_impossible_options(target, sign_key=sign_key, manifest=manifest, keep=keep)
    folder = Path(dist) if dist else layout.dist
    selected = select_wheels(folder, name or (), variant, tag)
    wheels, outdated_names, outdated_files = retention.plan_retention(target, selected, most)
    # Before the files are listed, which the signatures are among.
    sign_wheels([wheel.path for wheel in wheels], sign_key, dry_run=dry_run)
    suffixes: list[str] = []
    if target.takes_documents:
        suffixes += [*DOCUMENT_SUFFIXES, *SIGNATURE_SUFFIXES]
    if manifest:
        suffixes.append(MANIFEST_SUFFIX)
    files: list[UploadFile] = []
    for wheel in wheels:
        files += upload_set.upload_files(wheel, suffixes)
    outcomes = deliver_files(target, files, dry_run=dry_run)
    # Only after the new files have arrived: a failed upload leaves what users have now.
    if not dry_run:
        retention.remove_files(outdated_files)
    removal = "would be removed" if dry_run else "removed"
    older = [(wheel, "not uploaded") for wheel in outdated_names]
    older += [(file.name, removal) for file in outdated_files]
    lines = [f"to {target.name}"]
    lines += [f"  {file.name}: {outcome}" for file, outcome in outcomes]
    if older:
        lines.append(f"not of the newest {most}:")
        lines += [f"  {file_name}: {outcome}" for file_name, outcome in older]
    data = {
        "to": target.name,
        "files": [
            {"name": file.name, "sha256": file.sha256, "size": file.size, "said": outcome}
            for file, outcome in outcomes
        ],
        "older": [{"name": file_name, "said": outcome} for file_name, outcome in older],
    }
    return CommandOutput("\n".join(lines), data)


def refuse_impossible_options(
    target: PublishTarget, *, sign_key: str, manifest: bool, keep: str
) -> None:
    """Raise ConfigError for options that a target cannot follow."""
    impossible = []
    if sign_key and not target.takes_documents:
        impossible.append("no signatures (--sign-key)")
    if manifest and not target.takes_documents:
        impossible.append("no manifests (--manifest)")
    # Removal needs a wheel's statement, which proves that torchmill published the wheel.
    if keep and not (target.removes_files and target.takes_documents):
        impossible.append("no removal of files (--keep)")
    if impossible:
        raise ConfigError(
            f"{target.name} allows {' and '.join(impossible)}: leave that out, or publish elsewhere",
            code="contradictory-options",
        )


def select_wheels(dist: Path, names: Sequence[str], variant: str, tag: str) -> list[FinishedWheel]:
    """Return the wheels in a folder with some names, a variant and a tag; "" and () select all.

    Raises DeliveryError, which names every wheel that is not what it claims to be, or if there is
    no wheel.
    """
    packages = {canonicalize_name(name) for name in names}
    wheels = []
    for wheel in finished_wheel.read_wheels(wheel_file.list_wheels(dist)):
        wheel_tag = str(wheel.manifest.get("tag", ""))  # only the manifest knows it
        fits_name = not packages or wheel.name in packages
        if fits_name and variant in {"", wheel.version.local} and tag in {"", wheel_tag}:
            wheels.append(wheel)
    if not wheels:
        filters = ""
        if names or variant or tag:
            filters = " of that --name, --variant and --tag"
        raise DeliveryError(
            f"{dist} has no wheel{filters}: `invoke verify` lists what it has, `nox -l` what can "
            "be built",
            code="no-such-wheel",
        )
    refusals = []
    for wheel in wheels:
        verdict = agreement.examine_wheel(wheel.path, wheel=wheel)
        if verdict.problems:
            refusals.append(str(verdict))
        elif verdict.status != VOUCHED:
            refusals.append(f"{verdict.wheel}: {verdict.sentence}")
    if refusals:
        head = (
            "nothing is published, because not every wheel is what it claims to be, or says who "
            "made it:"
        )
        raise DeliveryError("\n  ".join([head, *refusals]), code="wheels-disagree")
    return wheels


def sign_wheels(wheels: Sequence[Path], sign_key: str, *, dry_run: bool) -> None:
    """Sign wheels with the private key in a file, if one is named, and check all signatures.

    With `dry_run` and a key, the key is read, and no wheel is signed or checked. Raises ConfigError
    if the file has no key, DeliveryError for a signature of something else, HostError if a
    signature cannot be written.
    """
    signers = Signers()
    signer = None
    if sign_key:
        signer = signature.read_signer(sign_key, os.environ)
        if dry_run:
            return
        signers = Signers((signer.public_key,))
    for wheel in wheels:
        if signer:
            with report_unwritable(wheel.parent):
                signature.sign_wheel(wheel, signer)
        AgreementVerdict(wheel, (signature.check_signatures(wheel, signers),)).require()


def deliver_files(
    target: PublishTarget, files: Sequence[UploadFile], *, dry_run: bool = False
) -> list[tuple[UploadFile, str]]:
    """Upload the files that a target lacks, and return the outcome of each file.

    Nothing is uploaded if the target refuses one of them, or has another file of its name. Raises
    TorchmillError.
    """
    complaints = [complaint for complaint in map(target.complaint, files) if complaint]
    if complaints:
        head = f"nothing is published to {target.name}:"
        raise DeliveryError("\n  ".join([head, *complaints]), code="target-refuses")
    for file in files:
        if file.size > target.usual_limit:
            warning = (
                f"{file.name} has {format_bytes(file.size)}: {target.name} takes "
                f"{format_bytes(target.usual_limit)} a file, unless it granted the project more"
            )
            # Standard output may be JSON.
            sys.stderr.write(as_plain_text(f"warning: {warning}\n"))
    present = target.existing_digests(files)
    missing = upload_set.files_to_upload(files, present, target.name)
    if not dry_run:
        _upload(target, missing, len(files))
    outcomes = []
    for file in files:
        outcome = upload_set.PRESENT
        if file in missing:
            outcome = upload_set.ABSENT if dry_run else upload_set.UPLOADED
        outcomes.append((file, outcome))
    return outcomes


def _upload(target: PublishTarget, missing: Sequence[UploadFile], total: int) -> None:
    """Upload the missing files, and confirm that they arrived; `total` counts all files.

    Then the target makes them visible, even if nothing was missing: an earlier run may have been
    ended after its last upload, and before that.
    """
    for number, file in enumerate(missing):
        try:
            upload_set.upload_file(target, file)
        except TorchmillError as error:
            # Those that the target had before, and those of this run.
            arrived = total - len(missing) + number
            raise type(error)(
                f"{error} ({arrived} of {total} files are there)", code=error.code
            ) from None
    if missing:
        upload_set.confirm_uploads(target, missing)
    target.finish()
