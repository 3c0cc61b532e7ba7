"""What only a Mac has, as a Mac's programs tell it."""

from pathlib import Path

from machines import made_up_programs, only, program

from torchmill.host import apple
from torchmill.host.programs import runner, tools

pytestmark = made_up_programs


def test_a_mac_tells_its_version_its_tools_and_rosetta(tmp_path: Path) -> None:
    program(tmp_path, "sw_vers", "14.5")
    program(tmp_path, "xcode-select", "/Library/Developer/CommandLineTools")
    program(tmp_path, "sysctl", "1")
    environ = only(tmp_path)
    run = runner(environ)
    assert apple.versions(run) == {"macos": "14.5"}
    assert apple.tools(tools(environ), run) == {"xcode": "/Library/Developer/CommandLineTools"}
    assert apple.is_translated(run)


def test_another_machine_has_none_of_it(tmp_path: Path) -> None:
    program(tmp_path, "sysctl", "0")
    run = runner(only(tmp_path))
    assert apple.versions(run) == {}
    assert apple.tools({}, run) == {}
    assert not apple.is_translated(run)
