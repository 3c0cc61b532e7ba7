"""Expect an error by its code, whatever its words are."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from millpress.errors import MillpressError

from torchmill.core.errors import TorchmillError


@contextmanager
def refused(code: str) -> Iterator[pytest.ExceptionInfo[Exception]]:
    """Expect that the block raises the error with this code; yields what pytest knows of it."""
    with pytest.raises((TorchmillError, MillpressError)) as caught:
        yield caught
    error = caught.value
    assert isinstance(error, TorchmillError | MillpressError)
    assert error.code == code, f"{error.code!r}: {error}"


def without_code(text: str) -> str:
    """Return a message of an error without its code: "error[x-y]: why" is "error: why"."""
    return re.sub(r"^error\[[\w-]+\]: ", "error: ", text)
