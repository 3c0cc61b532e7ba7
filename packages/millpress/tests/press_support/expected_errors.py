"""Expect an error of millpress by its code, whatever its words are."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from millpress.errors import MillpressError


@contextmanager
def refused(code: str) -> Iterator[pytest.ExceptionInfo[MillpressError]]:
    """Expect that the block raises the error with this code; yields what pytest knows of it."""
    with pytest.raises(MillpressError) as caught:
        yield caught
    assert caught.value.code == code, f"{caught.value.code!r}: {caught.value}"
