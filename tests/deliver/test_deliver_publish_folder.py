"""What only a folder can be as a target: no folder at all, or one with traps in it."""

from pathlib import Path

from tests.support import documented_wheels
from tests.support.refusals import refused
from torchmill.deliver.publish import upload_set
from torchmill.deliver.publish.folder import FolderTarget
from torchmill.wheel import finished_wheel


def test_a_folder_that_is_none_or_holds_traps_is_refused(tmp_path: Path) -> None:
    wheel = documented_wheels.built(tmp_path / "dist", "1.13.1+cpu")
    [file] = upload_set.upload_files(finished_wheel.read_wheel(wheel), ())
    (tmp_path / "file").write_text("")
    with refused("target-is-file"):
        FolderTarget(tmp_path / "file").existing_digests([file])
    (tmp_path / file.name).symlink_to(tmp_path / "nowhere")
    with refused("target-occupied"):
        FolderTarget(tmp_path).existing_digests([file])
    with refused("not-writable"):
        FolderTarget(tmp_path / "file" / "below").upload(file)
