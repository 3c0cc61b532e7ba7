"""Finished wheels, and the manifests beside them."""

import hashlib
import json
from pathlib import Path

from millpress import wheel_file
from press_support import written_wheels

from torchmill.wheel import finished_wheel


def test_a_manifest_counts_only_for_its_own_wheel(tmp_path: Path) -> None:
    wheel = written_wheels.made(tmp_path)
    manifest_file = wheel.with_name(f"{wheel.name}.json")
    own_manifest = {"sha256": hashlib.sha256(wheel.read_bytes()).hexdigest(), "tag": "v1"}
    manifest_file.write_text(json.dumps(own_manifest))
    assert finished_wheel.read_wheel(wheel).manifest == own_manifest
    manifest_file.write_text(json.dumps({"sha256": "0" * 64, "tag": "v1"}))
    assert finished_wheel.read_wheel(wheel).manifest == {}


def test_wheels_are_found_in_order(tmp_path: Path) -> None:
    for version in ("1.10", "1.9"):
        written_wheels.made(tmp_path, "tinytorch", version)
    written_wheels.made(tmp_path, "another", "2.0")
    (tmp_path / ".half-1.0-py3-none-any.whl").write_bytes(b"PK")
    (tmp_path / "another-2.0-py3-none-any.whl.json").write_text("{}")
    wheels = finished_wheel.read_wheels(wheel_file.list_wheels(tmp_path))
    assert [(wheel.name, str(wheel.version)) for wheel in wheels] == [
        ("another", "2.0"),
        ("tinytorch", "1.9"),
        ("tinytorch", "1.10"),
    ]
    assert wheel_file.list_wheels(tmp_path / "nowhere") == []
