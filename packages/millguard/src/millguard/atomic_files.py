"""Write files in one move, so that nobody ever reads half of one."""

import os
import re
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(target: Path) -> Iterator[Path]:
    """Yield a free path beside `target`, for the caller to write and to move to `target`.

    The folder is made if it is missing. A file that is still at the free path in the end is removed.
    Raises OSError if the folder cannot be written.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    fresh = target.with_name(f".{target.name}.{os.getpid()}-{secrets.token_hex(4)}")
    try:
        yield fresh
    finally:
        fresh.unlink(missing_ok=True)


def write_program(target: Path, content: bytes) -> None:
    """Write an executable file in one move. Raises OSError; the old file stays then."""
    with replacing(target) as fresh:
        fresh.write_bytes(content)
        fresh.chmod(0o755)
        fresh.replace(target)


def write_script(target: Path, template: Path, values: Mapping[str, str]) -> None:
    """Write an executable from a template with @names@, unless it is there already, unchanged.

    A script that somebody may be running is not replaced by its own copy: a shell reads its script
    while it runs. Raises OSError.
    """
    text = template.read_text(encoding="utf-8")
    content = re.sub(r"@(\w+)@", lambda match: values[match[1]], text).encode()
    if not target.is_file() or target.read_bytes() != content:
        write_program(target, content)
