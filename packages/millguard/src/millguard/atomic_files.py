"""Write files in one move, so that nobody ever reads half of one."""

import os
import re
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def fresh_path(target: Path) -> Iterator[Path]:
    """Yield a free path beside `target`, at which the block writes the target's new content.

    The block itself moves the file to `target`. If it does not, the file is deleted afterwards. The
    folder is made if it is missing; raises OSError if that is impossible.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    fresh = target.with_name(f".{target.name}.{os.getpid()}-{secrets.token_hex(4)}")
    try:
        yield fresh
    finally:
        fresh.unlink(missing_ok=True)


def write_program(target: Path, content: bytes) -> None:
    """Write an executable file in one move; if it fails, raises OSError, and the old file stays."""
    with fresh_path(target) as fresh:
        fresh.write_bytes(content)
        fresh.chmod(0o755)
        fresh.replace(target)


def write_script(target: Path, template: Path, values: Mapping[str, str]) -> None:
    """Write an executable script: the text of `template` with a value for each @NAME@ in it.

    `values` maps the names to the values. A script that has this text already is not written again.
    Raises OSError if a file cannot be read or written, KeyError if a value is missing.
    """
    text = template.read_text(encoding="utf-8")
    content = re.sub(r"@(\w+)@", lambda match: values[match[1]], text).encode()
    if target.is_file() and target.read_bytes() == content:
        return
    write_program(target, content)
