"""Progress that nobody sees."""


class SilentBar:
    """A bar that shows nothing."""

    def update(self, done: int, total: int | None = None, note: str = "") -> None:
        """Show nothing."""

    def close(self) -> None:
        """Show nothing."""


class SilentProgress:
    """A display that shows no bars."""

    def task(self, title: str, total: int | None = None) -> SilentBar:  # noqa: ARG002 (as ProgressDisplay)
        """Return a bar that shows nothing."""
        return SilentBar()
