"""`invoke publish`: bring verified wheels to an index, GitHub, a folder or a bucket; replace nothing."""

from __future__ import annotations

import json as json_
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name

from torchmill.commands.command import TaskCommand
from torchmill.config.model import Facts
from torchmill.core.errors import DeliveryError, TorchmillError
from torchmill.core.paths import Layout
from torchmill.deliver import agreement
from torchmill.deliver.publish import targets, upload_set
from torchmill.deliver.publish.targets import PublishTarget
from torchmill.deliver.publish.upload_set import UploadFile
from torchmill.wheel import wheel_file
from torchmill.wheel.dist_files import DOCUMENT_SUFFIXES
from torchmill.wheel.wheel_file import Distribution

# how invoke takes the options

_MANIFEST = ".json"


@dataclass(frozen=True, slots=True)
class WheelSelection:
    """Which wheels are meant; what is empty says nothing."""

    names: Sequence[str] = ()
    variant: str = ""
    tag: str = ""

    def has(self, wheel: Distribution) -> bool:
        """Tell whether a wheel is meant; only its manifest knows its release's tag."""
        return (
            (not self.names or wheel.name in {canonicalize_name(name) for name in self.names})
            and self.variant in {"", wheel.variant}
            and self.tag in {"", str(wheel.manifest.get("tag", ""))}
        )


@dataclass(frozen=True, slots=True)
class PublishOutcome:
    """What became of each file."""

    place: str
    files: Sequence[tuple[UploadFile, str]]

    def as_text(self) -> str:
        """Return a line for each file."""
        return "\n".join([f"to {self.place}", *(f"  {file.name}: {said}" for file, said in self.files)])

    def as_data(self) -> dict[str, Any]:
        """Return the same for programs."""
        files = [
            {"name": file.name, "sha256": file.sha256, "size": file.size, "said": said}
            for file, said in self.files
        ]
        return {"to": self.place, "files": files}


def publish_wheels(  # noqa: PLR0917 - every one is an option
    _: Facts,
    layout: Layout,
    to: str = "",
    name: list[str] | None = None,
    variant: str = "",
    tag: str = "",
    dist: str = "",
    simple: str = "",
    manifest: bool = False,
    dry_run: bool = False,
    json: bool = False,
) -> str:
    """Bring verified wheels to an index, a release on GitHub, a folder or a bucket; never replace any."""
    place = targets.choose_target(to, os.environ, simple)
    wheels = select_wheels(Path(dist) if dist else layout.dist, WheelSelection(name or (), variant, tag))
    suffixes = (*DOCUMENT_SUFFIXES, *([_MANIFEST] if manifest else [])) if place.takes_documents else ()
    files = [file for wheel in wheels for file in upload_set.upload_files(wheel, suffixes)]
    outcome = deliver_files(place, files, rehearsed=dry_run)
    return json_.dumps(outcome.as_data(), indent=1) if json else outcome.as_text()


def select_wheels(dist: Path, selection: WheelSelection) -> list[Distribution]:
    """Return the wheels that are meant, each found to be what it says.

    Raises DeliveryError that names every wheel that is not, or where there is none.
    """
    wheels = [wheel for wheel in wheel_file.read_wheels(dist) if selection.has(wheel)]
    if not wheels:
        raise DeliveryError(
            f"{dist} has no such wheel: build it with nox, or ask for others (`invoke verify`)"
        )
    verdicts = [agreement.examine_wheel(wheel.path) for wheel in wheels]
    if wrong := [f"{one.wheel.name}: {'; '.join(one.problems)}" for one in verdicts if one.problems]:
        raise DeliveryError("\n  ".join(["nothing is published, for not all is as it says:", *wrong]))
    return wheels


def deliver_files(place: PublishTarget, files: Sequence[UploadFile], *, rehearsed: bool) -> PublishOutcome:
    """Bring what is missing to a place, and return what became of each file.

    Nothing is brought where the place refuses one of them, or has another of its name. Raises SuiteError.
    """
    if complaints := [said for file in files if (said := place.complaint(file))]:
        raise DeliveryError("\n  ".join([f"nothing is published to {place.name}:", *complaints]))
    missing = upload_set.files_to_upload(files, place.existing(files), place.name)
    for number, file in enumerate([] if rehearsed else missing):
        try:
            place.upload(file)
        except TorchmillError as error:
            there = len(files) - len(missing) + number
            raise type(error)(f"{error} ({there} of {len(files)} files are there)") from None
    if not rehearsed:
        place.finish()
    done = upload_set.ABSENT if rehearsed else upload_set.UPLOADED
    return PublishOutcome(
        place.name, [(file, done if file in missing else upload_set.THERE) for file in files]
    )


PUBLISH = TaskCommand(
    publish_wheels,
    {
        "to": targets.WAYS,
        "name": "only wheels of this name, such as torch; may be repeated",
        "variant": "only wheels of this variant, such as cpu",
        "tag": "only wheels of this release, such as v1.13.1",
        "dist": "the folder that they lie in; default: dist/",
        "simple": "where an index is read, if that is not --to with /simple",
        "manifest": "publish the manifests, too: they name folders of the machine that built",
        "dry_run": "only say what would be done",
        "json": "print JSON",
    },
    repeated=("name",),
    short_flags=False,
)
