"""What only a Mac has, as a Mac's programs tell it."""

from pathlib import Path

from tests.support.machines import made_up_programs, only, program
from torchmill.host.programs import find_tools, is_translated, macos_version, make_runner, xcode_tools

pytestmark = made_up_programs


def test_a_mac_tells_its_version_its_tools_and_rosetta(tmp_path: Path) -> None:
    program(tmp_path, "sw_vers", "14.5")
    program(tmp_path, "xcode-select", "/Library/Developer/CommandLineTools")
    program(tmp_path, "sysctl", "1")
    environ = only(tmp_path)
    run = make_runner(environ)
    assert macos_version(run) == {"macos": "14.5"}
    assert xcode_tools(find_tools(environ), run) == {"xcode": "/Library/Developer/CommandLineTools"}
    assert is_translated(run)


def test_another_machine_has_none_of_it(tmp_path: Path) -> None:
    program(tmp_path, "sysctl", "0")
    run = make_runner(only(tmp_path))
    assert macos_version(run) == {}
    assert xcode_tools({}, run) == {}
    assert not is_translated(run)
