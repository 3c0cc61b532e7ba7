"""Verify a finished wheel without installing or running it."""

from collections.abc import Iterator
from pathlib import Path

from millpress import content_checks, library_checks, module_checks, wheel_file
from millpress.errors import WheelError


def verify_wheel(wheel: Path) -> list[str]:
    """Return a clause for each problem of a wheel; an empty list for a sound one.

    Its name, METADATA, WHEEL and RECORD must agree, its members must be what RECORD says and safe
    to extract, its extension modules must have the function that an import calls, and its libraries
    must be for the machine of its platform tags and need no more of the C library than these
    promise. The file is read to its end. A file that is missing or not a wheel has one problem.
    Raises OSError if the disk for temporary files is full.

        wheel = Path("dist/spam-1.0-cp312-cp312-manylinux_2_28_x86_64.whl")
        for problem in millpress.verify_wheel(wheel):
            print(problem)
    """
    problems: list[str] = []
    try:
        for problem in _all_problems(wheel):
            # a damaged extension module is found by the checks of modules and of libraries
            if problem not in problems:
                problems.append(problem)
    except WheelError as error:
        problems.append(str(error).removeprefix(f"{wheel}: "))
    return problems


def _all_problems(wheel: Path) -> Iterator[str]:
    """Yield the problems that each check finds. Raises WheelError if the file is not a wheel."""
    yield from content_checks.wheel_problems(wheel)
    renamed = content_checks.renamed_platform(wheel)
    if renamed:
        yield renamed
    with wheel_file.open_wheel(wheel) as archive:
        yield from module_checks.modules_without_entry(archive)
    judgement = library_checks.judge_tags(wheel)
    yield from judgement.contradictions
    yield from judgement.broken_promises
