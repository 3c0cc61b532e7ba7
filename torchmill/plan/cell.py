"""A cell of the matrix: a build of a release, and the reasons if it is impossible."""

from dataclasses import dataclass

from torchmill.config.build import Build
from torchmill.config.release import Release


@dataclass(frozen=True, slots=True)
class Cell:
    """A build of a release. It is impossible if it has `reasons`, for people to read."""

    build: Build
    release: Release
    reasons: tuple[str, ...] = ()

    @property
    def is_possible(self) -> bool:
        """Tell whether the facts allow the build."""
        return not self.reasons

    @property
    def reason(self) -> str | None:
        """Return the first reason why the cell is impossible; None for a possible cell."""
        return self.reasons[0] if self.reasons else None
