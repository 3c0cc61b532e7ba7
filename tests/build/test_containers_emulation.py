"""Which programs of other architectures the kernel runs, by what it says of its binfmt_misc entries."""

from pathlib import Path

import pytest

from torchmill.build.containers import engine

# As Linux 6 wrote them on Debian 12, after `update-binfmts --enable qemu-aarch64` and `--enable qemu-x86_64`.
AARCH64 = """\
enabled
interpreter /usr/libexec/qemu-binfmt/aarch64-binfmt-P
flags: PF
offset 0
magic 7f454c460201010000000000000000000200b700
mask ffffffffffffff00fffffffffffffffffeffffff
"""
PYTHON = """\
enabled
interpreter /usr/bin/python3.11
flags:
offset 0
magic a70d0d0a
"""
BY_NAME = """\
enabled
interpreter /usr/bin/cli
flags:
extension .exe
"""


def test_a_registered_emulation_is_found_whatever_it_is_called() -> None:
    found = engine.find_handler("aarch64", {"jar": BY_NAME, "python3.11": PYTHON, "rosetta": AARCH64})
    assert found is not None
    assert (found.name, found.interpreter) == ("rosetta", "/usr/libexec/qemu-binfmt/aarch64-binfmt-P")
    assert engine.explain_no_emulation("aarch64", {"rosetta": AARCH64}) is None


def test_that_of_another_architecture_does_not_count() -> None:
    said = {"qemu-aarch64": AARCH64}
    assert engine.find_handler("x86_64", said) is None
    refusal = engine.explain_no_emulation("x86_64", said)
    assert refusal is not None
    assert "tonistiigi/binfmt --install amd64" in refusal


@pytest.mark.parametrize("text", [AARCH64.replace("enabled", "disabled"), AARCH64[:60], ""])
def test_what_is_disabled_or_cut_off_does_not_count(text: str) -> None:
    refusal = engine.explain_no_emulation("aarch64", {"qemu-aarch64": text})
    assert refusal is not None
    assert "does not run programs for aarch64" in refusal
    assert "`update-binfmts --enable qemu-aarch64`" in refusal


def test_an_interpreter_that_containers_do_not_see_is_refused() -> None:
    refusal = engine.explain_no_emulation("aarch64", {"qemu-aarch64": AARCH64.replace("PF", "P")})
    assert refusal is not None
    assert "/usr/libexec/qemu-binfmt/aarch64-binfmt-P, which a container does not see" in refusal
    both = {"old": AARCH64.replace("PF", "P"), "new": AARCH64}
    assert engine.explain_no_emulation("aarch64", both) is None


def test_entries_are_read_from_the_kernel(tmp_path: Path) -> None:
    assert engine.read_binfmt_entries(tmp_path) == {}
    folder = tmp_path / engine.BINFMT_FOLDER
    folder.mkdir(parents=True)
    for name, text in {"qemu-aarch64": AARCH64, "status": "enabled\n", "register": ""}.items():
        (folder / name).write_text(text)
    assert engine.read_binfmt_entries(tmp_path) == {"qemu-aarch64": AARCH64}
