"""Progress that nobody sees."""

import io

from torchmill.core.console import ProgressBar, ProgressDisplay, ThrottledOutput


class SilentBar(ProgressBar):
    """A bar that shows nothing."""

    def __init__(self) -> None:
        super().__init__(ThrottledOutput(io.StringIO()), "", None, None)


class SilentProgress(ProgressDisplay):
    """A display that shows no bars."""

    def __init__(self) -> None:
        super().__init__(io.StringIO())
