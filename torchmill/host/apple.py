"""What only a Mac has."""

from collections.abc import Mapping

from torchmill.host.programs import Run


def versions(run: Run) -> dict[str, str]:
    """Return the version of macOS."""
    said = run(["sw_vers", "-productVersion"]).strip()
    return {"macos": said} if said else {}


def tools(places: Mapping[str, str], run: Run) -> dict[str, str]:
    """Return where the command-line tools of Xcode are; nothing where they are not installed."""
    said = run([places["xcode-select"], "-p"]).strip() if "xcode-select" in places else ""
    return {"xcode": said} if said else {}


def is_translated(run: Run) -> bool:
    """Tell whether this very process was made for Intel and runs on Apple silicon."""
    return run(["sysctl", "-n", "sysctl.proc_translated"]).strip() == "1"
