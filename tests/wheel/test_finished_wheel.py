"""Finished wheels, and the manifests beside them."""

import hashlib
import json
from pathlib import Path

from millpress import wheel_file
from press_support.written_wheels import made

from torchmill.wheel import finished_wheel


def test_a_manifest_is_believed_only_of_its_own_file(tmp_path: Path) -> None:
    wheel = made(tmp_path)
    beside = wheel.with_name(f"{wheel.name}.json")
    true = {"sha256": hashlib.sha256(wheel.read_bytes()).hexdigest(), "tag": "v1"}
    beside.write_text(json.dumps(true))
    assert finished_wheel.read_wheel(wheel).manifest == true
    beside.write_text(json.dumps({"sha256": "0" * 64, "tag": "v1"}))
    assert finished_wheel.read_wheel(wheel).manifest == {}


def test_wheels_are_found_in_order(tmp_path: Path) -> None:
    for version in ("1.10", "1.9"):
        made(tmp_path, "tinytorch", version)
    made(tmp_path, "another", "2.0")
    (tmp_path / ".half-1.0-py3-none-any.whl").write_bytes(b"PK")
    (tmp_path / "another-2.0-py3-none-any.whl.json").write_text("{}")
    found = finished_wheel.read_wheels(wheel_file.list_wheels(tmp_path))
    assert [(one.name, str(one.version)) for one in found] == [
        ("another", "2.0"),
        ("tinytorch", "1.9"),
        ("tinytorch", "1.10"),
    ]
    assert wheel_file.list_wheels(tmp_path / "nowhere") == []
