"""What a release needs from the system."""

from tests.support.refusals import refused
from torchmill.config import matrix
from torchmill.config.model import Facts
from torchmill.plan import system_packages


def test_conda_is_taken_only_when_an_environment_is_active() -> None:
    def which(name: str) -> str | None:
        return f"/bin/{name}" if name in {"conda", "apt-get"} else None

    assert system_packages.find_manager({}, which) == "apt"
    assert system_packages.find_manager({"CONDA_PREFIX": "/opt/env"}, which) == "conda"


def test_no_package_manager_is_told() -> None:
    with refused("no-package-manager"):
        system_packages.find_manager({}, lambda _: None)


def test_only_root_installs_without_sudo() -> None:
    assert system_packages.install_command("apt", ["git"], root=False)[:2] == ("sudo", "apt-get")
    assert system_packages.install_command("apt", ["git"], root=True)[0] == "apt-get"
    assert system_packages.install_command("brew", ["git"], root=False) == ("brew", "install", "git")


def test_the_source_of_debian_needs_debians_libraries(shipped: Facts) -> None:
    release = matrix.find_release(shipped, "torch", "v1.13.1")
    cells = matrix.buildable_cells(shipped, release, "x86_64")
    plain = system_packages.required_packages(shipped, cells, "apt", "git")
    debian = system_packages.required_packages(shipped, cells, "apt", "debian")
    assert {"build-essential", "git"} <= set(plain)
    assert {"libdnnl-dev", "libgloo-dev", "flatbuffers-compiler"} <= set(debian) - set(plain)
    assert len(debian) == len(set(debian))


def test_every_manager_knows_a_compiler(shipped: Facts) -> None:
    release = matrix.find_release(shipped, "torch", "v2.4.0")
    cells = matrix.buildable_cells(shipped, release, "x86_64")
    assert "gcc-c++" in system_packages.required_packages(shipped, cells, "dnf", None)
    assert "cxx-compiler" in system_packages.required_packages(shipped, cells, "conda", None)
