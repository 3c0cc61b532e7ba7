"""What ShellCheck finds in programs for bash."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any


def shellcheck(*scripts: Path) -> list[dict[str, Any]]:
    """Return its findings."""
    program = shutil.which("shellcheck", path=str(Path(sys.executable).parent))
    assert program, "requirements-dev.txt brings it"
    argv = [program, "--norc", "--shell=bash", "--format=json", *map(str, scripts)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    found = json.loads(done.stdout)
    assert isinstance(found, list)
    return found
