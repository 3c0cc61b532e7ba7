"""The kernel's emulation of other architectures, by its descriptions of interpreters."""

from pathlib import Path

import pytest

from tests.support.stand_in_engine import AARCH64
from torchmill.cell.containers import emulation

PYTHON = """\
enabled
interpreter /usr/bin/python3.11
flags:
offset 0
magic a70d0d0a
"""
# Without flag F: containers do not see its interpreter.
NOT_OPENED = AARCH64.replace("PF", "P")
BY_EXTENSION = """\
enabled
interpreter /usr/bin/cli
flags:
extension .exe
"""


def test_a_registered_emulation_is_found_whatever_it_is_called() -> None:
    entries = {"jar": BY_EXTENSION, "python3.11": PYTHON, "rosetta": AARCH64}
    handler = emulation.find_handler("aarch64", entries)
    assert handler is not None
    assert handler.name == "rosetta"
    assert handler.interpreter == "/usr/libexec/qemu-binfmt/aarch64-binfmt-P"
    assert emulation.explain_no_emulation("aarch64", {"rosetta": AARCH64}) is None


def test_an_emulation_of_another_architecture_does_not_count() -> None:
    entries = {"qemu-aarch64": AARCH64}
    assert emulation.find_handler("x86_64", entries) is None
    refusal = emulation.explain_no_emulation("x86_64", entries)
    assert refusal is not None
    assert "tonistiigi/binfmt --install amd64" in refusal


@pytest.mark.parametrize("text", [AARCH64.replace("enabled", "disabled"), AARCH64[:60], ""])
def test_an_entry_that_is_disabled_or_cut_off_does_not_count(text: str) -> None:
    refusal = emulation.explain_no_emulation("aarch64", {"qemu-aarch64": text})
    assert refusal is not None
    assert "does not run programs for aarch64" in refusal
    assert "`update-binfmts --enable qemu-aarch64`" in refusal


def test_an_interpreter_that_containers_do_not_see_is_refused() -> None:
    refusal = emulation.explain_no_emulation("aarch64", {"qemu-aarch64": NOT_OPENED})
    assert refusal is not None
    assert "/usr/libexec/qemu-binfmt/aarch64-binfmt-P, which containers cannot see" in refusal
    both = {"old": NOT_OPENED, "new": AARCH64}
    assert emulation.explain_no_emulation("aarch64", both) is None


def test_entries_are_read_from_the_kernel(tmp_path: Path) -> None:
    assert emulation.read_binfmt_entries(tmp_path) == {}
    folder = tmp_path / "proc/sys/fs/binfmt_misc"
    folder.mkdir(parents=True)
    for name, text in {"qemu-aarch64": AARCH64, "status": "enabled\n", "register": ""}.items():
        (folder / name).write_text(text)
    assert emulation.read_binfmt_entries(tmp_path) == {"qemu-aarch64": AARCH64}
