"""What several test files share: a small set of facts, and the flag that rewrites golden files."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

import pytest

from tests.support import commands
from tests.support.commands import PROGRAMS
from torchmill.config import facts_reader
from torchmill.config.facts import Facts

ROOT = Path(__file__).parent.parent
os.environ.update(PROGRAMS)
# A step of the network is repeated at once, but once: servers that fail on purpose cost no time.
os.environ["TORCHMILL_TRIES"] = "2"
os.environ["MILLGUARD_BOARD"] = ""  # tests run side by side, and regard no build of another

# A shell starts what it puts into the background with SIGINT ignored, and children inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Tests commit to repositories of their own, also on a machine whose user has no identity in git.
for role in ("AUTHOR", "COMMITTER"):
    os.environ.setdefault(f"GIT_{role}_NAME", "Tester")
    os.environ.setdefault(f"GIT_{role}_EMAIL", "tester@example.org")

ARCHES = """
    [x86_64]
    system = "linux"
    machines = ["x86_64"]
    platform_tag = "manylinux_{glibc}_x86_64"
    oldest_glibc = "2.5"

    [aarch64]
    system = "linux"
    machines = ["aarch64"]
    platform_tag = "manylinux_{glibc}_aarch64"
    oldest_glibc = "2.17"

    [arm64]
    system = "macos"
    machines = ["arm64"]
    platform_tag = "macosx_{macos}_arm64"
"""
TOOLKITS = """
    ["10.2"]
    gcc = "<9"
    capabilities = ["3.7", "5.0", "6.0", "7.0", "7.5"]
    arches = ["x86_64"]
    source = "test"

    ["11.8"]
    gcc = ">=6,<12"
    capabilities = ["3.7", "5.0", "6.0", "7.0", "7.5", "8.0", "8.6", "9.0"]
    arches = ["x86_64", "aarch64"]
    source = "test"

    ["12.4"]
    gcc = ">=6,<14"
    capabilities = ["5.0", "6.0", "7.0", "7.5", "8.0", "8.6", "9.0", "9.0a"]
    arches = ["x86_64", "aarch64"]
    source = "test"
"""
BASE = """
    name = "base"
    session = "wheel"
    repository = "https://github.com/a/base.git"
    import_name = "base"
    checks = "sample"
    tag = "v{version}"
    memory_per_job = "2 GiB"
    disk = "1 GiB"

    [version_variables]
    BASE_VERSION = "{version}"

    [off_spelling]
    releases = "<1.5"
    USE_CUDA = "NO_CUDA"
    USE_FAST = "NO_FAST"

    [[rule]]
    reason = "a build without CUDA says so"
    when = { variant = "cpu" }
    set = { USE_CUDA = "0" }

    [[rule]]
    reason = "what every build needs"
    requires = ["wheel", "numpy"]

    [[rule]]
    reason = "numpy 2 came later"
    when = { release = "<2" }
    requires = ["numpy<2"]

    [[rule]]
    reason = "new releases have a PEP 517 back end"
    when = { release = ">=2" }
    front_end = "pep517"

    [[rule]]
    reason = "nobody has made Python 3.10 and CUDA 11.8 meet on aarch64"
    when = { python = "==3.10", cuda = "==11.8", arch = "aarch64" }
    conflict = true
"""
ADDON = """
    name = "addon"
    session = "vision"
    repository = "https://github.com/a/addon.git"
    import_name = "addon"
    checks = "sample"
    after = "base"
    tag = "v{version}"
    memory_per_job = "1 GiB"
    disk = "1 GiB"

    [version_variables]
    BUILD_VERSION = "{version}"
    BASE_PIN = "{torch}"
"""
OLD = """
    [base]
    version = "1.0.0"
    commit = "1111111111111111111111111111111111111111"
    pythons = ["3.9", "3.10"]
    arches = ["x86_64", "aarch64", "arm64"]
    source = "test"

    [base.cuda]
    range = ">=10.2,<12"

    [base.cuda.official."10.2"]
    capabilities = "3.7;7.0"

    [addon]
    version = "0.1.0"
    source = "test"
"""
NEW = """
    [base]
    version = "2.0.0"
    pythons = ["3.10", "3.13", "3.13t"]
    arches = ["x86_64", "aarch64"]
    source = "test"

    [base.cuda]
    range = ">=11.8"
"""


@pytest.fixture(scope="session", autouse=True)
def warm_home(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Let the commands of tests find parsed facts."""
    commands.warm_home = tmp_path_factory.mktemp("warm")


@pytest.fixture
def configs(tmp_path: Path) -> Path:
    """Write a small build_configs and return its folder."""
    folder = tmp_path / "build_configs"
    for name, text in {
        "arches.toml": ARCHES,
        "toolkits.toml": TOOLKITS,
        "packages/base.toml": BASE,
        "packages/addon.toml": ADDON,
        "releases/1.0.0.toml": OLD,
        "releases/2.0.0.toml": NEW,
    }.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(text), encoding="utf-8")
    return folder


@pytest.fixture
def small_facts(configs: Path) -> Facts:
    """Return the small facts, loaded."""
    return facts_reader.read_facts(configs)


@pytest.fixture(scope="session")
def upstream(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create the repositories of the sample, and return their folder."""
    folder = tmp_path_factory.mktemp("upstream")
    subprocess.run([sys.executable, "sample/upstream.py", str(folder)], cwd=ROOT, check=True)
    return folder


@pytest.fixture(scope="session")
def envs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return the folder of nox's environments that all samples share, as a user's checkouts may."""
    folder = tmp_path_factory.mktemp("shared") / "envs"
    run = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        run = run.parent
    # All workers share what pip brought, empty environments, and what ccache has of compiled files.
    for name in ("pip", "environments", "ccache"):
        shared_folder = run / name
        shared_folder.mkdir(exist_ok=True)
        folder.with_name(name).symlink_to(shared_folder)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def cache(envs: Path) -> Path:
    """Return the user's cache of samples in which nothing depends on what is compiled anew."""
    folder = envs.with_name("cache")
    (folder / "torchmill").mkdir(parents=True)
    (folder / "torchmill" / "ccache").symlink_to(envs.with_name("ccache"))
    return folder


@pytest.fixture(scope="session")
def shipped() -> Facts:
    """Return the facts that ship with the suite."""
    return facts_reader.read_facts(ROOT / "build_configs")


def pytest_itemcollected(item: pytest.Item) -> None:
    if item.get_closest_marker("long"):
        item.add_marker("slow")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let `pytest --update-golden` rewrite the files in tests/golden."""
    parser.addoption("--update-golden", action="store_true", help="rewrite tests/golden")
