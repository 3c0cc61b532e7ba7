"""A draft of the facts about a package, put together from its texts and from dry runs."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from torchmill.plan.package_draft.edits import Edit
from torchmill.plan.package_draft.findings import SourceFinding
from torchmill.plan.package_draft.metadata import (
    Metadata,
    lower_bound,
    parse_requirement,
    torch_bounds,
)
from torchmill.plan.package_draft.scenarios import Scenario
from torchmill.plan.package_draft.setup_run import Extension, SetupRun
from torchmill.plan.package_draft.setup_script import SetupScript
from torchmill.plan.package_draft.source_texts import SourceTexts

# Kinds of packages, by the names of their files in build_configs/kinds/.
TORCH_EXTENSION = "torch-extension"
TORCH_CMAKE = "torch-cmake"
# Requirements that the kind has, or that are what the package is built against.
_GIVEN = {"torch", "ninja", "setuptools", "wheel", "pip"}
_OLDEST_TORCH = Version("2.0")
_THREADS_REASON = (
    "each thread of nvcc takes as much memory as a compile of its own; the guard starts more of those "
    "while there is memory"
)
_PREFIX = re.compile(r"(?:py)?torch-")
_NOT_A_PACKAGE = {"tests", "test", "examples", "docs", "benchmarks", "scripts", "csrc"}
_BINDING = re.compile(r"PYBIND11_MODULE|NB_MODULE|TORCH_EXTENSION_NAME|PyInit_")
# Libraries that only register operators define an empty module for Windows, whose linker wants one.
_WINDOWS_ALONE = re.compile(r"#\s*ifdef _WIN32[^#]*PyInit_")


@dataclass(frozen=True, slots=True)
class SourceOrigin:
    """The origin of a source."""

    origin: str  # "gsplat-1.5.3.tar.gz of the index", a path or a URL
    on_index: bool
    sha256: str | None = None  # None for a folder


@dataclass(frozen=True, slots=True)
class PackageDraft:
    """All that a file about a package says."""

    name: str
    version: str
    session: str
    import_name: str
    archive: SourceOrigin
    proof: str  # where it is known from: "dry run of setup.py of 1.5.3 with torch 2.15.0"
    kind: str = TORCH_EXTENSION  # "": none
    torch: str = ">=2.0"
    requires_python: str | None = None
    requirements: tuple[str, ...] = ()  # of the build, beside those of the kind
    extensions: tuple[Extension, ...] = ()  # of the build with CUDA, else of that without
    cpu: Scenario | None = None  # that leads to a build without CUDA; None: there is none
    cuda: Scenario | None = None
    cpu_failure: str = ""  # why there is no build without CUDA
    cuda_failure: str = ""
    capabilities: tuple[str, ...] = ()  # that setup.py names by itself
    edits: tuple[Edit, ...] = ()
    settings: Mapping[str, tuple[str, str]] = field(default_factory=dict)  # name -> value, reason
    smoke: tuple[str, ...] = ()
    wheel_tag: str = ""  # of one wheel for several Pythons: "cp39-abi3"
    pep517: bool = False  # built by its backend, and not by setup.py
    has_cuda_files: bool = True
    doubts: tuple[str, ...] = ()  # sentences on what to look at
    findings: tuple[SourceFinding, ...] = ()

    @property
    def is_without_cuda(self) -> bool:
        """Tell whether it has no code for GPUs at all.

        A build of it with CUDA would then fail its checks, which look for that code.
        """
        return self.cuda is None and self.cpu is not None and not self.has_cuda_files

    @property
    def file_name(self) -> str:
        """Return the name of its file in packages/."""
        return f"{canonicalize_name(self.name)}.toml"


def session_of(name: str, other_sessions: Collection[str]) -> str:
    """Return a package's word in the names of cells: "spline-conv" for "torch-spline-conv".

    `other_sessions` are the words of other packages. If it is among them, the whole name is the
    word, and if that is too, or begins with a digit, the name with "-ext" after it.
    """
    canonical = canonicalize_name(name)
    short = _PREFIX.sub("", canonical, count=1)
    for word in (short, canonical):
        # The name of a cell begins with a letter, and ends with a Python and a variant.
        if word not in other_sessions and re.fullmatch(r"[a-z][a-z0-9.-]*", word):
            return word
    return f"{canonical}-ext"


def import_name_of(name: str, runs: Sequence[SetupRun], texts: SourceTexts) -> str:
    """Return the module that a package is imported by.

    That is one of the top-level packages and modules of the wheel, else of its libraries, else of
    the folders of the source: the one with the distribution's name, else one whose name contains
    that or is contained in it, else the first. Without any, it is the distribution's name.
    """
    distribution = canonicalize_name(name).replace("-", "")
    tops = _installed_modules(runs) or _folders_of_packages(texts)
    choices = [top for top in tops if top not in _NOT_A_PACKAGE and top.isidentifier()]
    plain_names = {top: top.replace("_", "").lower() for top in choices}
    for top, plain_name in plain_names.items():
        if plain_name == distribution:
            return top
    for top, plain_name in plain_names.items():
        if plain_name in distribution or distribution in plain_name:
            return top
    return choices[0] if choices else canonicalize_name(name).replace("-", "_")


def _installed_modules(runs: Iterable[SetupRun]) -> list[str]:
    """Return the modules at the top of what setup.py installs; of its libraries if it has no others."""
    modules: dict[str, None] = {}
    libraries: dict[str, None] = {}
    for run in runs:
        for item in (*run.packages, *run.modules):
            modules[item.strip("/").replace("/", ".").partition(".")[0]] = None
        for extension in run.extensions:
            libraries[extension.name.partition(".")[0]] = None
    return list(modules or libraries)


def _folders_of_packages(texts: SourceTexts) -> list[str]:
    """Return the folders at the top of a source that are packages of Python."""
    folders: list[str] = []
    for path in texts.sizes:
        folder, _, file = path.partition("/")
        if file == "__init__.py":
            folders.append(folder)
    return folders


def smoke_lines(
    import_name: str,
    extensions: Sequence[Extension],
    everywhere: Collection[str],
    bindings: Bindings,
) -> tuple[str, ...]:
    """Return lines of Python that show that a wheel of a package loads.

    Libraries that every build has (`everywhere`) are imported by their names if their sources
    define a module of Python; others are loaded by the package itself.
    """
    names = [import_name]
    for extension in extensions:
        has_binding = any(source in bindings.with_binding for source in extension.sources)
        if extension.name in everywhere and has_binding and _is_dotted(extension.name):
            names.append(extension.name)
    return (f"import torch, {', '.join(dict.fromkeys(names))}",)


@dataclass(frozen=True, slots=True)
class Bindings:
    """The sources that define a module of Python."""

    with_binding: frozenset[str]


def defines_module(text: str) -> bool:
    """Tell whether the text of a C++ source defines a module of Python."""
    return bool(_BINDING.search(_WINDOWS_ALONE.sub("", text)))


def _is_dotted(name: str) -> bool:
    """Tell whether a name can be imported."""
    return all(part.isidentifier() for part in name.split("."))


def torch_range(metadata: Metadata, runs: Iterable[SetupRun]) -> tuple[str, str]:
    """Return bounds of torch that claim nothing but what the package itself demands, and a doubt.

    Only the oldest torch is taken from its requirements, or 2.0 if that is newer. An upper bound is
    often merely that of the day: it is named in the doubt, "" if there is none.
    """
    requirements = [value.text for value in (*metadata.build_requires, *metadata.requires)]
    for run in runs:
        requirements += [*run.setup_requires, *run.install_requires]
    bounds = torch_bounds(requirements)
    oldest = max(lower_bound(bounds) or _OLDEST_TORCH, _OLDEST_TORCH)
    upper_bounds = {str(item) for item in bounds if item.operator not in {">=", ">", "!="}}
    doubt = ""
    if upper_bounds:
        bounds_text = ",".join(sorted(upper_bounds))
        doubt = f"the package itself asks for torch{bounds_text}; newer ones were not tried"
    return f">={oldest}", doubt


def build_requirements(
    metadata: Metadata, runs: Iterable[SetupRun], missing: Mapping[str, str]
) -> tuple[str, ...]:
    """Return the requirements of a build, without those of its kind and without torch.

    They are those of pyproject.toml and of setup_requires, and the projects of modules that setup.py
    imports and that were `missing`, by module.
    """
    texts = [value.text for value in metadata.build_requires]
    for run in runs:
        texts += run.setup_requires
        # An extension of another class is usually built by CMake: "CMakeExtension".
        if any("cmake" in extension.kind.lower() for extension in run.extensions):
            texts.append("cmake")
    texts += missing.values()
    requirements: dict[str, str] = {}
    for text in texts:
        requirement = parse_requirement(text)
        if requirement is None or _is_left_out(requirement):
            continue
        # Requirements with markers do not replace one another: "numpy; python_version >= '3.7'".
        key = f"{canonicalize_name(requirement.name)};{requirement.marker or ''}"
        requirements.setdefault(key, str(requirement))
    return tuple(sorted(requirements.values()))


def _is_left_out(requirement: Requirement) -> bool:
    """Tell whether a requirement is given anyway, or of no use for a build."""
    name = canonicalize_name(requirement.name)
    if requirement.url is not None or "extra" in str(requirement.marker or ""):
        return True
    # The environment that lends torch may have an old setuptools, with which the kind is content.
    needs_newer = any(item.operator in {">=", ">", "~=", "=="} for item in requirement.specifier)
    return name in _GIVEN and not (name == "setuptools" and needs_newer)


def jobs_settings(runs: Iterable[SetupRun], script: SetupScript) -> dict[str, tuple[str, str]]:
    """Return the variables that keep one compiler to one thread, each with the reason."""
    names: dict[str, None] = {}
    for run in runs:
        names.update(dict.fromkeys(variable.name for variable in run.variables))
    names.update(dict.fromkeys(variable.name for variable in script.variables))
    settings: dict[str, tuple[str, str]] = {}
    if "NVCC_THREADS" in names:
        settings["NVCC_THREADS"] = ("1", _THREADS_REASON)
    return settings


def force_build_settings(
    script: SetupScript, runs: Iterable[SetupRun]
) -> dict[str, tuple[str, str]]:
    """Return the variable that lets a setup.py compile which would else download a wheel.

    It comes with its value and the reason; {} if the setup.py downloads nothing or asks for no such
    variable.
    """
    if not script.downloads:
        return {}
    variables = {variable.name: variable for variable in script.variables}
    for run in runs:
        for variable in run.variables:
            variables.setdefault(variable.name, variable)
    for name, variable in variables.items():
        if name.endswith("FORCE_BUILD"):
            value = "1" if variable.default in {None, "", "0"} else "TRUE"
            reason = (
                "without it setup.py downloads a wheel where there is one, and compiles nothing"
            )
            return {name: (value, reason)}
    return {}


def oldest_capability(capabilities: Sequence[str]) -> str:
    """Return the oldest of some compute capabilities; "" if there is none."""
    return min(capabilities, key=lambda name: [int(part) for part in name.split(".")], default="")


def open_doubts(runs: Iterable[SetupRun], *, uses_cmake: bool) -> Iterator[str]:
    """Yield a sentence if another program than setuptools, such as CMake, builds a library."""
    for run in runs:
        for extension in run.extensions:
            if extension.is_left_open:
                program = "CMake" if uses_cmake else "another program than setuptools"
                yield f"{program} builds {extension.name}: its flags and files are not known"
                return


def thread_doubts(runs: Iterable[SetupRun]) -> Iterator[str]:
    """Yield a sentence if nvcc is told to use several threads, and no variable says how many."""
    for run in runs:
        for extension in run.extensions:
            flags = list(extension.flags.get("nvcc", ()))
            if "--threads" in flags and not any(
                variable.name == "NVCC_THREADS" for variable in run.variables
            ):
                yield "nvcc gets --threads: each thread takes as much memory as a compile of its own"
                return
