"""Expect an error of ours by its code, whatever its words are."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from torchmill.core.errors import TorchmillError


@contextmanager
def refused(code: str) -> Iterator[pytest.ExceptionInfo[TorchmillError]]:
    """Expect that what is done inside raises the error with this code; yields what pytest knows of it."""
    with pytest.raises(TorchmillError) as caught:
        yield caught
    assert caught.value.code == code, f"{caught.value.code!r}: {caught.value}"
