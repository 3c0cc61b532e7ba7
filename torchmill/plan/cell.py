"""A cell of the matrix: a build of a release, and why it is impossible, if it is."""

from dataclasses import dataclass

from torchmill.config.build import Build
from torchmill.config.release import Release


@dataclass(frozen=True, slots=True)
class Cell:
    """A build of a release; `reasons` say why it is impossible: a possible one has none."""

    build: Build
    release: Release
    reasons: tuple[str, ...] = ()

    @property
    def possible(self) -> bool:
        """Tell whether the facts allow it."""
        return not self.reasons

    @property
    def reason(self) -> str | None:
        """Return the first of the reasons, None for a possible cell."""
        return self.reasons[0] if self.reasons else None
