"""What the files of a source show of its build: findings, each with the place that shows it.

They complete the dry run, which tells what is compiled and with which flags: a finding says what to
look at, or why nothing needs to be built at all.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from torchmill.core.units import format_bytes
from torchmill.plan.package_draft.metadata import Metadata
from torchmill.plan.package_draft.setup_script import SETUP, SetupScript
from torchmill.plan.package_draft.source_texts import (
    CUDA_SUFFIX,
    CXX_SUFFIXES,
    HIP_SUFFIX,
    Place,
    SourceTexts,
    search,
)

_CMAKE = "CMakeLists.txt"
_CMAKE_DOWNLOAD = r"(?:FetchContent_Declare|ExternalProject_Add)\(\s*([\w.-]+)?|file\(DOWNLOAD"
_CMAKE_MODULES = ("FetchContent.cmake", "ExternalProject.cmake")
_STABLE_ABI = r"TORCH_TARGET_VERSION|torch/csrc/stable|Py_LIMITED_API|py_limited_api"
_STANDARD = r"-std[= ](?:c|gnu)\+\+\w+|CMAKE_CXX_STANDARD\s+\d+|CMAKE_CUDA_STANDARD\s+\d+"
_JOBS = re.compile(r"(?!MAX_JOBS$)\w*(JOBS|WORKERS|THREADS)\w*")
_ARCHES = re.compile(r"(?!TORCH_CUDA_ARCH_LIST$)\w*(ARCH|GENCODE|CAPABILIT)\w*")
_HEAVY_BYTES = 100_000  # a file for CUDA that is known to compile long
_SUBMODULE = re.compile(r"^\s*path\s*=\s*(\S+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class SourceFinding:
    """Something that a file of the source shows."""

    subject: str  # "submodule", "capabilities"
    text: str  # a clause
    place: Place
    sure: bool = False

    def __str__(self) -> str:
        """Return "subject: text (place)"."""
        return f"{self.subject}: {self.text} ({self.place})"


def find_in_texts(
    texts: SourceTexts, script: SetupScript, metadata: Metadata
) -> list[SourceFinding]:
    """Return the findings in the files of a source, in the order of their weight."""
    findings = [
        *_submodules(texts),
        *_downloads(texts, script),
        *_variables(script),
        *_constants(script),
        *_standards(texts),
        *_stable_abi(texts),
        *_build_system(texts, metadata),
        *_old_modules(texts),
        *_heavy_files(texts),
    ]
    if metadata.problem:
        findings.insert(
            0, SourceFinding("metadata", metadata.problem, Place("pyproject.toml"), True)
        )
    if script.problem:
        text = f"cannot be parsed ({script.problem})"
        findings.insert(0, SourceFinding(SETUP, text, Place(SETUP), True))
    return findings


def empty_submodules(texts: SourceTexts) -> list[str]:
    """Return the submodules of a source without a file in its folder."""
    paths = _SUBMODULE.findall(texts.text(".gitmodules"))
    return [path for path in paths if not texts.has_entries(path)]


def _submodules(texts: SourceTexts) -> Iterator[SourceFinding]:
    """Yield a finding for each submodule that the archive lacks."""
    for path in empty_submodules(texts):
        text = f"{path} is empty: the archive lacks what the build includes from there"
        yield SourceFinding("submodule", text, Place(".gitmodules"), True)


def _downloads(texts: SourceTexts, script: SetupScript) -> Iterator[SourceFinding]:
    """Yield a finding on what CMake can download, and one on what setup.py can."""
    places: dict[str, Place] = {}
    for name in texts.texts:
        # Copies of CMake's own modules have examples in their comments.
        if name.endswith((_CMAKE, ".cmake")) and not name.endswith(_CMAKE_MODULES):
            for match, place in search(texts, _CMAKE_DOWNLOAD, [name]):
                places.setdefault(match[1] or "a file", place)
    if places:
        text = f"CMake can download {', '.join(places)}; a build has no network"
        yield SourceFinding("download", text, next(iter(places.values())))
    if script.downloads:
        lines = ", ".join(str(place.line) for place in script.downloads[:4])
        text = f"it can download (lines {lines}); a build has no network"
        yield SourceFinding("download", text, script.downloads[0])


def _variables(script: SetupScript) -> Iterator[SourceFinding]:
    """Yield a finding for each variable that sets jobs, or compute capabilities."""
    for variable in script.variables:
        if _JOBS.fullmatch(variable.name):
            text = f"{variable.name} sets how much runs at a time (default {variable.default})"
            yield SourceFinding("jobs", text, variable.place)
        elif _ARCHES.fullmatch(variable.name):
            text = f"{variable.name} may name the capabilities to compile for"
            yield SourceFinding("capabilities", text, variable.place)


def _constants(script: SetupScript) -> Iterator[SourceFinding]:
    """Yield a finding for each constant that decides what is compiled."""
    for constant in script.constants:
        text = (
            f"{constant.name} = {constant.value} decides what is compiled, and no variable changes it: "
            "a rule with `prepare` can"
        )
        yield SourceFinding("constant", text, constant.place)


def _standards(texts: SourceTexts) -> Iterator[SourceFinding]:
    """Yield a finding for each standard of C++ that a file beside setup.py names, once."""
    names = [name for name in texts.texts if name.endswith((".py", ".cmake"))]
    seen: set[str] = set()
    for match, place in search(texts, _STANDARD, names):
        if match[0] not in seen and place.file != SETUP:
            # In setup.py and CMakeLists.txt the kind raises it to what the headers of torch ask for.
            yield SourceFinding("standard", f"{match[0]} is named", place)
        seen.add(match[0])


def _stable_abi(texts: SourceTexts) -> Iterator[SourceFinding]:
    """Yield the finding on the first line that asks for a stable ABI, of torch or of Python."""
    for match, place in search(texts, _STABLE_ABI, texts.texts):
        text = (
            f"{match[0]}: one wheel may serve several releases of torch or Python (`stable_abi`, "
            "`wheel_tag`)"
        )
        yield SourceFinding("stable ABI", text, place)
        return


def _build_system(texts: SourceTexts, metadata: Metadata) -> Iterator[SourceFinding]:
    """Yield the findings on the backend, and on CMake if a setup.py may run it."""
    if metadata.backend and not metadata.uses_setuptools:
        text = f"{metadata.backend.text} builds it"
        yield SourceFinding("backend", text, metadata.backend.place, True)
    if metadata.backend and metadata.backend_is_own:
        text = f"{metadata.backend.text} is its own: all but its run of setup.py is left out"
        yield SourceFinding("backend", text, metadata.backend.place)
    pattern = r"CMakeExtension|cmake_minimum_required|[\"']cmake[\"']"
    for match, place in search(texts, pattern, [SETUP, _CMAKE]):
        if metadata.backend is None or metadata.uses_setuptools:
            yield SourceFinding("CMake", f"{match[0]}: parts of it may be built by CMake", place)
        return


def _old_modules(texts: SourceTexts) -> Iterator[SourceFinding]:
    """Yield a finding for each import of a module that newer Pythons or setuptools lack.

    Only the packages at the top count: in setup.py, setuptools provides these modules.
    """
    pattern = r"\b(?:import|from)\s+(pkg_resources|distutils|imp)\b"
    names = [name for name in texts.texts if name.endswith("/__init__.py")]
    for match, place in search(texts, pattern, names):
        text = f"it imports {match[1]}, which newer Pythons or setuptools lack"
        yield SourceFinding("import", text, place)


def _heavy_files(texts: SourceTexts) -> Iterator[SourceFinding]:
    """Yield the findings on the number and the size of the files for CUDA; none without any."""
    cuda = texts.with_suffix(CUDA_SUFFIX)
    cxx = texts.with_suffix(*CXX_SUFFIXES)
    if cuda:
        largest = max(cuda, key=lambda path: cuda[path])
        text = f"{len(cuda)} files for CUDA, {len(cxx)} of C++; the largest has "
        text += format_bytes(cuda[largest])
        yield SourceFinding("files", text, Place(largest), True)
        heavy = [path for path in cuda if cuda[path] > _HEAVY_BYTES]
        if heavy:
            text = f"{len(heavy)} files for CUDA have more than {format_bytes(_HEAVY_BYTES)}"
            yield SourceFinding(
                "memory", f"{text}: `memory_per_job` may be too low", Place(heavy[0])
            )


def is_rocm_alone(texts: SourceTexts) -> bool:
    """Tell whether a source has code for AMD's GPUs and none for NVIDIA's."""
    return bool(texts.with_suffix(HIP_SUFFIX)) and not texts.with_suffix(CUDA_SUFFIX)


def compiles_something(texts: SourceTexts, script: SetupScript, metadata: Metadata) -> bool:
    """Tell whether the texts of a source show that its build compiles something.

    They show it by a setup() with ext_modules, by torch's extension builder, and by a backend that
    runs CMake or meson.
    """
    if script.has_extensions or script.uses_extension_builder:
        return True
    if metadata.uses_setuptools:
        return bool(re.search(r"ext[-_]modules", texts.text("pyproject.toml")))
    backend = metadata.backend.text if metadata.backend else ""
    return is_built_by_cmake(metadata) or backend.startswith(("mesonpy", "maturin"))


def is_built_by_cmake(metadata: Metadata) -> bool:
    """Tell whether the backend of a source runs CMake."""
    backend = metadata.backend.text if metadata.backend else ""
    return backend.startswith(("scikit_build_core", "py_build_cmake"))


def uses_torch(texts: SourceTexts, script: SetupScript, metadata: Metadata) -> bool:
    """Tell whether the build of a source uses torch, as far as its texts show it."""
    if script.uses_extension_builder or "torch" in script.imports:
        return True
    requirements = " ".join(value.text for value in metadata.build_requires)
    if re.search(r"\btorch\b", requirements):
        return True
    lists = [name for name in texts.texts if name.endswith(_CMAKE)]
    return any(search(texts, r"find_package\(\s*Torch\b", lists))
