"""`invoke verify`: check that wheels, manifests, statements and SBOMs agree."""

from __future__ import annotations

import json as json_
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchmill.commands.command import TaskCommand
from torchmill.config.model import Facts
from torchmill.core.errors import ConfigError, DeliveryError, HostError
from torchmill.core.files import write_atomically
from torchmill.core.paths import Layout
from torchmill.deliver import agreement
from torchmill.deliver.agreement import AgreementVerdict
from torchmill.wheel import dist_files, wheel_file

# how invoke takes the options


@dataclass(frozen=True, slots=True)
class VerifyAnswer:
    """What was found of some wheels."""

    verdicts: tuple[AgreementVerdict, ...]
    for_programs: bool = False

    def __str__(self) -> str:
        return json_.dumps(self.as_data(), indent=1) if self.for_programs else self.as_text()

    def as_text(self) -> str:
        """Return a line for each thing that was looked at."""
        return "\n".join(
            "\n".join([one.wheel.name, *(f"  {check.text}" for check in one.checks)]) for one in self.verdicts
        )

    def as_data(self) -> list[dict[str, Any]]:
        """Return the same for programs."""
        return [
            {
                "wheel": str(one.wheel),
                "ok": not one.problems,
                "checks": [
                    {
                        "name": check.name,
                        "ok": not check.problems,
                        "said": check.said,
                        "problems": check.problems,
                    }
                    for check in one.checks
                ],
            }
            for one in self.verdicts
        ]

    def require(self) -> None:
        """Raise DeliveryError that names every problem of every wheel."""
        wrong = [one for one in self.verdicts if one.problems]
        if len(wrong) == 1:
            wrong[0].require()
        if wrong:
            lines = [f"{one.wheel}: {'; '.join(one.problems)}" for one in wrong]
            of_all = f"{len(wrong)} of {len(self.verdicts)} wheels are not what they say, do not use them:"
            raise DeliveryError("\n  ".join([of_all, *lines]))


def verify_wheels(
    _: Facts, layout: Layout, wheel: str | None = None, write: bool = False, json: bool = False
) -> VerifyAnswer:
    """See whether wheels, their manifests, statements, SBOMs and contents agree."""
    files = _meant(layout, wheel or "")
    if write:
        write_missing(files)
    return VerifyAnswer(tuple(agreement.examine_wheel(file) for file in files), json)


def _meant(layout: Layout, wheel: str) -> list[Path]:
    """Return the wheels that are named; raises ConfigError or DeliveryError where there is none."""
    named = Path(wheel) if wheel else layout.dist
    if wheel and not named.exists():
        raise ConfigError(f"invoke verify {wheel}: there is no such file: give a wheel, or a folder of them")
    if named.is_file() and named.suffix != ".whl":
        raise ConfigError(f"invoke verify {wheel}: this is no wheel: give the wheel that it lies beside")
    files = [named] if named.is_file() else wheel_file.list_wheels(named)
    if not files:
        raise DeliveryError(f"{named} has no wheels: build one with nox, or name another folder")
    return files


def write_missing(wheels: Iterable[Path]) -> None:
    """Write the documents that are missing beside wheels that were built before there were any.

    Only where the manifest is of this very wheel; what is wrong with either, `checking.examine` tells. Raises
    HostError where the disk refuses.
    """
    for wheel in wheels:
        lacking = [
            suffix
            for suffix in dist_files.DOCUMENT_SUFFIXES
            if not dist_files.document_path(wheel, suffix).exists()
        ]
        documents = _following(wheel) if lacking else {}
        for suffix in lacking if documents else ():
            file = dist_files.document_path(wheel, suffix)
            try:
                write_atomically(file, documents[suffix])
            except OSError as error:
                raise HostError(
                    f"{file}: cannot be written ({error.strerror or error}): see whose the folder is and how "
                    "much room there is"
                ) from None


def _following(wheel: Path) -> Mapping[str, bytes]:
    """Return what follows from the manifest of a wheel; nothing where it is another's, or damaged."""
    try:
        told = wheel_file.read_wheel(wheel).manifest
        return dist_files.compose_documents(told, wheel) if told else {}
    except (DeliveryError, *agreement.DAMAGED):
        return {}


VERIFY = TaskCommand(
    verify_wheels,
    {
        "wheel": "a wheel, or a folder of them; default: all in dist/",
        "write": "first write statements and SBOMs that are missing, from the manifests",
        "json": "print JSON",
    },
    argument="wheel",
)
