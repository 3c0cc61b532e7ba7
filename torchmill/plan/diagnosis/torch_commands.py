"""Write the commands that install torch: from the index that has it for this machine."""

from collections.abc import Iterator, Sequence

from packaging.version import Version

from torchmill.config.arch_list import parse_checked_arch_list
from torchmill.config.facts import Facts
from torchmill.config.gpu import BoardIndex
from torchmill.config.release import Release
from torchmill.config.release_lookup import newest_release
from torchmill.config.served_gpus import serving_kind
from torchmill.config.versions import cuda_label
from torchmill.plan.diagnosis.situation import Fact, Situation

_INDEX = "https://download.pytorch.org/whl"
_PARTNERS = ("torchvision", "torchaudio")
_CPU = "cpu"
_MINOR_COMPATIBLE = 11  # first major version of CUDA whose drivers run all of its minor ones


def index_facts(facts: Facts, situation: Situation) -> Iterator[Fact]:
    """Yield the label of the wheels that go with the installed torch, and the option for pip.

    `wheel_label` is "cu121" or "cpu"; `index_option` names the index, and is "" where PyPI has the
    right wheels: on macOS, and on Linux for a torch of which nothing is known.
    """
    label = _wheel_label(situation)
    if label:
        basis = situation.known_facts("torch", "torch_cuda", "torch_kind")
        yield Fact("wheel_label", label, "rules", basis=basis)
    board = _board_index(facts, situation)
    basis = situation.known_facts("system", "torch_cuda", "jetson", "jetpack")
    if board is not None:
        yield Fact("index_option", f"--index-url {board.url}", "rules", basis=basis)
    elif situation.value("jetson"):
        return
    elif situation.value("system") == "macos" or not label:
        yield Fact("index_option", "", "rules", basis=basis)
    else:
        yield Fact("index_option", f"--index-url {_INDEX}/{label}", "rules", basis=basis)


def _wheel_label(situation: Situation) -> str:
    """Return the label of the wheels that go with torch: "cu121", "cpu"; "" if it is not known."""
    if situation.value("torch_kind") == "without CUDA":
        return _CPU
    label = situation.value("torch_index")
    if label:
        return label
    return _CPU if situation.value("system") == "macos" else ""


def _board_index(facts: Facts, situation: Situation) -> BoardIndex | None:
    """Return the index of wheels for a Jetson with its JetPack; None if none is known."""
    jetpack = situation.value("jetpack")
    if jetpack is None:
        return None
    for index in facts.gpus.board_indexes:
        if index.jetpack == jetpack:
            return index
    return None


def torch_facts(facts: Facts, situation: Situation) -> Iterator[Fact]:
    """Yield the commands that install torch again, and that install one with CUDA.

    `torch_again` keeps the release that is installed. `torch_with_cuda` takes wheels whose CUDA the
    driver runs and which have code for the GPU, where these are known. macOS has no CUDA.
    """
    version = situation.value("torch_version")
    packages = _pinned_packages(situation)
    option = situation.value("index_option")
    basis = situation.known_facts("torch", "torch_cuda", "driver", "gpu")
    if option is not None and version:
        command = f"pip install --force-reinstall {packages} {option}".strip()
        yield Fact("torch_again", command, "rules", basis=basis)
    system = situation.value("system")
    if system == "macos" or situation.value("rocm"):
        return
    if situation.value("jetson"):
        board = _board_index(facts, situation)
        if board is not None:
            command = f"pip install --force-reinstall torch torchvision --index-url {board.url}"
            yield Fact("torch_with_cuda", command, "rules", basis=basis)
        return
    yield from _upgrade_facts(facts, situation)
    choice = _release_with_cuda(facts, situation, situation.value("torch_version"))
    if choice is None:
        return
    release, cuda = choice
    if version != release.version:
        packages = "torch torchvision torchaudio"
    command = f"pip install --force-reinstall {packages} --index-url {_INDEX}/{cuda_label(cuda)}"
    yield Fact("cuda_to_take", cuda, "rules", basis=basis)
    yield Fact("torch_with_cuda", command, "rules", basis=basis)


def _pinned_packages(situation: Situation) -> str:
    """Return torch and its partners with the versions that go together, as pip takes them."""
    names = [f"torch=={situation.value('torch_version')}"]
    for partner in _PARTNERS:
        version = situation.value(partner)
        if version:
            names.append(f"{partner}=={version}")
    return " ".join(names)


def _upgrade_facts(facts: Facts, situation: Situation) -> Iterator[Fact]:
    """Yield the option with which pip finds a newer torch: on Windows PyPI has none with CUDA."""
    newest = _release_with_cuda(facts, situation, None)
    basis = situation.known_facts("system", "driver", "gpu")
    is_for_cpus = situation.value("torch_kind") == "without CUDA"
    if situation.value("system") != "windows" or is_for_cpus or newest is None:
        yield Fact("upgrade_option", "", "rules", basis=basis)
    else:
        option = f"--index-url {_INDEX}/{cuda_label(newest[1])}"
        yield Fact("upgrade_option", option, "rules", basis=basis)


def _release_with_cuda(
    facts: Facts, situation: Situation, installed: str | None
) -> tuple[Release, str] | None:
    """Return the release of torch to take, and the CUDA of its wheels; None if none is known.

    The installed release goes before the newest one that this Python has wheels of.
    """
    releases = facts.releases[newest_release(facts).package]
    python = situation.value("python")
    ordered = [release for release in releases if release.version == installed]
    ordered += [
        release for release in reversed(releases) if python is None or python in release.pythons
    ]
    serving: list[tuple[Release, list[str]]] = []
    for release in ordered:
        cudas = [cuda for cuda in release.cuda.official if _serves(facts, situation, release, cuda)]
        if cudas:
            serving.append((release, cudas))
    if situation.value("driver_cuda") is None and situation.value("gpu_capability"):
        # Many drivers do not run the newest major version of CUDA yet.
        official: set[str] = set()
        for release in releases:
            official.update(release.cuda.official)
        newest = max(Version(cuda).major for cuda in official)
        serving = _before_major(serving, newest) or serving
    for release, cudas in serving:
        torch_cuda = situation.value("torch_cuda")
        if torch_cuda in cudas:
            return release, torch_cuda
        # Most drivers run the CUDA of PyPI's wheels; where it does not serve, the newest does best.
        usual = release.cuda.pypi
        return release, usual if usual in cudas else max(cudas, key=Version)
    return None


def _before_major(
    serving: Sequence[tuple[Release, list[str]]], major: int
) -> list[tuple[Release, list[str]]]:
    """Return those releases, and of their CUDAs those, that are before a major version."""
    limited: list[tuple[Release, list[str]]] = []
    for release, cudas in serving:
        older = [cuda for cuda in cudas if Version(cuda).major < major]
        if older:
            limited.append((release, older))
    return limited


def _driver_has(newest: Version, cuda: Version) -> bool:
    """Tell whether a driver with a CUDA runs another: from 11 on all of the same major version.

    https://docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html
    """
    if newest.major == cuda.major and cuda.major >= _MINOR_COMPATIBLE:
        return True
    return cuda <= newest


def _serves(facts: Facts, situation: Situation, release: Release, cuda: str) -> bool:
    """Tell whether wheels of a CUDA are not known to fail here: by the driver and by the GPU."""
    newest = situation.value("driver_cuda")
    if newest and not _driver_has(Version(newest), Version(cuda)):
        return False
    name = situation.value("gpu_capability")
    capability = facts.capability(name) if name else None
    if capability is None:
        return True
    # Wheels whose list is not recorded are not known to have code. PTX of wheels from before the GPU
    # would run as well, but not the libraries beside it.
    listed = release.cuda.official[cuda].capabilities.get("x86_64", "")
    return serving_kind(facts, parse_checked_arch_list(facts, listed), capability) == "code"
