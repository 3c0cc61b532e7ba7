"""`invoke publish`: bring verified wheels to an index, GitHub, a folder or a bucket; replace nothing."""

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


def publish_wheels(  # noqa: PLR0917 - every one is an option
    layout: Layout,
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
    """Publish verified wheels to an index, GitHub, a folder or a bucket."""
    target, most = targets.choose_target(to, os.environ, simple), retention.parse_keep(keep)
    if (sign_key or most or manifest) and not target.takes_documents:
        raise ConfigError(
            f"{target.name} takes only wheels: --sign-key, --keep and --manifest are for folders, GitHub and buckets",
            code="contradictory-options",
        )
    chosen = select_wheels(Path(dist) if dist else layout.dist, name or (), variant, tag)
    wheels, late, stale = retention.plan_retention(target, chosen, most)
    sign_wheels([wheel.path for wheel in wheels], sign_key, dry_run=dry_run)
    beside = (*DOCUMENT_SUFFIXES, *SIGNATURE_SUFFIXES, *([MANIFEST_SUFFIX] if manifest else []))
    suffixes = beside if target.takes_documents else ()
    files = [file for wheel in wheels for file in upload_set.upload_files(wheel, suffixes)]
    outcomes = deliver_files(target, files, dry_run=dry_run)
    if not dry_run:
        retention.remove_files(stale)
    older = [(wheel, "not uploaded") for wheel in late]
    older += [(file.name, "would be removed" if dry_run else "removed") for file in stale]
    lines = [f"to {target.name}", *(f"  {file.name}: {outcome}" for file, outcome in outcomes)]
    if older:
        lines += [
            f"not of the newest {most}:",
            *(f"  {file}: {outcome}" for file, outcome in older),
        ]
    data = [
        {"name": file.name, "sha256": file.sha256, "size": file.size, "said": said}
        for file, said in outcomes
    ]
    dropped = [{"name": file, "said": outcome} for file, outcome in older]
    return CommandOutput("\n".join(lines), {"to": target.name, "files": data, "older": dropped})


def select_wheels(dist: Path, names: Sequence[str], variant: str, tag: str) -> list[FinishedWheel]:
    """Return the wheels of some names, a variant and a release; what is empty selects all.

    Raises DeliveryError that names every wheel that is not what it claims to be, or if there is none.
    """
    wanted = {canonicalize_name(name) for name in names}
    wheels = [
        wheel
        for wheel in finished_wheel.read_wheels(wheel_file.list_wheels(dist))
        if (not wanted or wheel.name in wanted)
        and variant in {"", wheel.version.local}
        and tag in {"", str(wheel.manifest.get("tag", ""))}  # only the manifest knows it
    ]
    if not wheels:
        of_these = " of that --name, --variant and --tag" if names or variant or tag else ""
        told = f"{dist} has no wheel{of_these}: `invoke verify` lists what it has, `nox -l` what can be built"
        raise DeliveryError(told, code="no-such-wheel")
    verdicts = [agreement.examine_wheel(wheel.path, distribution=wheel) for wheel in wheels]
    if wrong := [
        str(one) if one.problems else f"{one.wheel}: {one.sentence}"
        for one in verdicts
        if one.status != VOUCHED
    ]:
        head = "nothing is published, because not every wheel is what it claims to be, or says who made it:"
        raise DeliveryError("\n  ".join([head, *wrong]), code="wheels-disagree")
    return wheels


def sign_wheels(wheels: Sequence[Path], sign_key: str, *, dry_run: bool) -> None:
    """Sign wheels with the private key in a file, if one is named, and see that all signatures beside them fit.

    Raises ConfigError for what is no key, DeliveryError for a signature of something else, HostError.
    """
    signer = signature.read_signer(sign_key, os.environ) if sign_key else None
    if signer and dry_run:
        return
    signers = Signers((signer.public_key,)) if signer else Signers()
    for wheel in wheels:
        if signer:
            with report_unwritable(wheel.parent):
                signature.sign_wheel(wheel, signer)
        AgreementVerdict(wheel, (signature.check_signatures(wheel, signers),)).require()


def deliver_files(
    target: PublishTarget, files: Sequence[UploadFile], *, dry_run: bool = False
) -> list[tuple[UploadFile, str]]:
    """Upload what a target lacks, and return what became of each file.

    Nothing is uploaded if the target refuses one of them, or has another of its name. Raises TorchmillError.
    """
    if complaints := [text for file in files if (text := target.complaint(file))]:
        head = f"nothing is published to {target.name}:"
        raise DeliveryError("\n  ".join([head, *complaints]), code="target-refuses")
    for file in (one for one in files if one.size > target.usual_limit):
        limit = f"{target.name} takes {format_bytes(target.usual_limit)} a file"
        warning = f"{file.name} has {format_bytes(file.size)}: {limit}, unless it granted the project more"
        sys.stderr.write(as_plain_text(f"warning: {warning}\n"))
    missing = upload_set.files_to_upload(files, target.existing_digests(files), target.name)
    if dry_run:
        return [
            (file, upload_set.ABSENT if file in missing else upload_set.PRESENT) for file in files
        ]
    for number, file in enumerate(missing):
        try:
            target.upload(file)
        except TorchmillError as error:
            done = len(files) - len(missing) + number
            raise type(error)(
                f"{error} ({done} of {len(files)} files are there)", code=error.code
            ) from None
    if missing:
        upload_set.confirm_uploads(target, missing)
    target.finish()
    return [
        (file, upload_set.UPLOADED if file in missing else upload_set.PRESENT) for file in files
    ]
