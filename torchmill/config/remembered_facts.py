"""The facts of a checkout as one file in the user's cache, so that most commands parse nothing.

Reading and checking all files of `build_configs/` takes a fifth of a second; reading this file takes
a fifth of that (measured on 2026-12-01). It is a pickle: no other format of the standard library
keeps dataclasses, and a library such as msgspec or cattrs would be one more requirement for all
users. A pickle can name anything that Python can import. So only the classes of facts are accepted.
"""

import contextlib
import hashlib
import importlib
import io
import pickle
import shutil
from pathlib import Path
from typing import Any

from torchmill.config.facts import Facts
from torchmill.config.facts_state import read_facts_state
from torchmill.core.atomic_writes import write_atomically
from torchmill.core.paths import Layout, facts_folder
from torchmill.core.stat_cache import FileStat, StatCache

_FACT_CLASSES = "torchmill.config."
_OTHER_MODULES = frozenset({"packaging.specifiers", "packaging.version", "pathlib"})
_DIGEST_BYTES = 32
_MEMORIES = 8  # of 4 MB each; a build in a fresh clone each time would leave one each time


def load_facts(root: Path) -> Facts:
    """Return the usable facts of a checkout, or of the folder that TORCHMILL_CONFIGS names.

    They are remembered in the user's cache until a file of the facts, or the code that reads them,
    changes; facts of other checkouts and folders are remembered beside them, but not of more than
    eight. Raises ConfigError as `read_usable_facts` does.
    """
    folder = facts_folder(root)
    memory = Layout.of_checkout(root).facts_memory(folder)
    state = read_facts_state(folder)
    remembered = _read_remembered(memory.facts, state)
    if remembered is not None:
        return remembered
    from torchmill.config.facts_reader import read_usable_facts

    cache = StatCache(memory.parsed_files)
    try:
        facts = read_usable_facts(folder, cache)
    finally:
        cache.save()
    if state.is_settled:
        content = pickle.dumps(facts, protocol=5)
        with contextlib.suppress(OSError):
            write_atomically(memory.facts, _digest(state, content) + content)
            _forget_oldest(memory.folder.parent)
    return facts


def _forget_oldest(folder: Path) -> None:
    """Delete all but the newest of the memories in a folder, by when their files changed.

    Raises OSError if one cannot be read or deleted, or is being deleted by another process.
    """
    memories = sorted(folder.iterdir(), key=lambda memory: memory.stat().st_mtime_ns)
    for memory in memories[:-_MEMORIES]:
        shutil.rmtree(memory)


def _digest(state: FileStat, content: bytes) -> bytes:
    """Return a digest of the state of the facts and of the pickle; the file begins with it."""
    return hashlib.sha256(state.text.encode() + content).digest()


def _read_remembered(file: Path, state: FileStat) -> Facts | None:
    """Return the facts of a file; None if it is missing, damaged, or of another state.

    None, too, if somebody has put other things than facts into it.
    """
    try:
        written = file.read_bytes()
    except OSError:
        return None
    digest = written[:_DIGEST_BYTES]
    content = written[_DIGEST_BYTES:]
    if digest != _digest(state, content):
        return None
    try:
        facts = _FactsUnpickler(io.BytesIO(content)).load()
    except Exception:  # noqa: BLE001 - a pickle that we did not write may raise anything:
        # https://docs.python.org/3/library/pickle.html#pickle.UnpicklingError
        return None
    return facts if isinstance(facts, Facts) else None


class _FactsUnpickler(pickle.Unpickler):
    """An unpickler that makes nothing but facts."""

    def find_class(self, module_name: str, global_name: str) -> Any:
        """Return a class that a pickle names. Raises UnpicklingError if it is not one of facts."""
        is_class_of_facts = module_name.startswith(_FACT_CLASSES) and "." not in global_name
        if is_class_of_facts or module_name in _OTHER_MODULES:
            found = getattr(importlib.import_module(module_name), global_name)
            if isinstance(found, type):
                return found
        raise pickle.UnpicklingError(f"{module_name}.{global_name} is no class of facts")
