"""The sessions that nox lists are remembered for as long as facts and code look the same."""

import json
from pathlib import Path
from shutil import copyfile

import pytest

from torchmill.commands import session_matrix
from torchmill.core import stat_cache


@pytest.mark.parametrize(
    "changed_file",
    [
        "build_configs/runs.toml",
        "build_configs/kinds/torch-extension.toml",
        "torchmill/commands/session_matrix.py",
    ],
)
def test_sessions_are_computed_again_if_facts_or_code_change(
    changed_file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = tmp_path / "torchmill" / "commands" / "session_matrix.py"
    file = tmp_path / changed_file
    for path in (module, file):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    copyfile(session_matrix.__file__, module)
    monkeypatch.setattr(session_matrix, "__file__", str(module))
    monkeypatch.setattr(stat_cache, "SETTLED_SECONDS", -60.0)  # files of this moment are settled
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("TORCHMILL_CONFIGS", raising=False)
    computed = []

    def compute_sessions(_: Path, arch: str, tag: str | None) -> str:
        computed.append((arch, tag))
        return json.dumps({"sessions": [], "warnings": []})

    monkeypatch.setattr(session_matrix, "_compute_sessions", compute_sessions)
    for _ in range(2):
        session_matrix.list_sessions(tmp_path, "x86_64", None)
    assert len(computed) == 1
    with file.open("a") as stream:
        stream.write("# changed\n")
    session_matrix.list_sessions(tmp_path, "x86_64", None)
    assert len(computed) == 2
