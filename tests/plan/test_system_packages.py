"""The system packages that a release needs, and the command that installs them."""

from tests.support.refusals import refused
from torchmill.config.facts import Facts
from torchmill.config.linux_distribution import LinuxDistribution
from torchmill.config.release_lookup import find_release
from torchmill.plan import matrix, system_packages


def find_manager(*programs: str, distribution: LinuxDistribution | None = None) -> str:
    """Return the package manager of a machine that has some programs, and no conda environment."""
    has = set(programs).__contains__
    return system_packages.find_manager(has, distribution, conda=False)


def test_conda_is_taken_only_when_an_environment_is_active() -> None:
    has = {"conda", "apt-get"}.__contains__
    assert system_packages.find_manager(has, None, conda=False) == "apt"
    assert system_packages.find_manager(has, None, conda=True) == "conda"


def test_the_manager_of_the_distribution_goes_before_others() -> None:
    fedora = LinuxDistribution("fedora", "42")
    assert find_manager("apt-get", "dnf", distribution=fedora) == "dnf"
    nobara = LinuxDistribution("nobara", "41", ("rhel", "fedora"))
    assert find_manager("apt-get", "microdnf", distribution=nobara) == "microdnf"
    with refused("no-package-manager") as caught:
        find_manager("apt-get", distribution=fedora)
    assert "fedora 42 usually has the package manager dnf" in str(caught.value)


def test_a_machine_without_package_manager_is_refused() -> None:
    with refused("no-package-manager"):
        find_manager()


def test_only_root_installs_without_sudo() -> None:
    assert system_packages.install_command("apt", ["git"], sudo=True).startswith("sudo apt-get ")
    assert system_packages.install_command("apt", ["git"], sudo=False).startswith("apt-get ")
    assert system_packages.install_command("brew", ["git"], sudo=True) == "brew install git"


def test_the_source_of_debian_needs_debians_libraries(shipped: Facts) -> None:
    release = find_release(shipped, "torch", "v1.13.1")
    cells = matrix.buildable_cells(shipped, release, "x86_64")
    plain = system_packages.required_packages(shipped, cells, "apt", "git")
    debian = system_packages.required_packages(shipped, cells, "apt", "debian")
    assert {"build-essential", "git"} <= set(plain)
    assert {"libdnnl-dev", "libgloo-dev", "flatbuffers-compiler"} <= set(debian) - set(plain)
    assert len(debian) == len(set(debian))


def test_every_manager_knows_a_compiler(shipped: Facts) -> None:
    release = find_release(shipped, "torch", "v2.4.0")
    cells = matrix.buildable_cells(shipped, release, "x86_64")
    assert "gcc-c++" in system_packages.required_packages(shipped, cells, "dnf", None)
    assert "cxx-compiler" in system_packages.required_packages(shipped, cells, "conda", None)
