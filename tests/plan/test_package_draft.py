"""Drafts of packages: what small texts and made-up dry runs lead to."""

import tomllib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from packaging.specifiers import SpecifierSet

from tests.support.refusals import refused
from torchmill.plan.package_draft import compose, draft, findings
from torchmill.plan.package_draft.compose import DryRuns, ReadSource
from torchmill.plan.package_draft.draft import Bindings, SourceOrigin
from torchmill.plan.package_draft.draft_text import draft_as_toml
from torchmill.plan.package_draft.edits import change_constant, edit_works, propose_edits
from torchmill.plan.package_draft.metadata import lower_bound, read_metadata
from torchmill.plan.package_draft.scenarios import (
    WITH_CUDA,
    WITHOUT_CUDA,
    Scenario,
    choose_scenario,
    further_scenarios,
)
from torchmill.plan.package_draft.setup_run import Extension, RunError, SetupRun, parse_run
from torchmill.plan.package_draft.setup_script import ReadVariable, read_setup_script
from torchmill.plan.package_draft.source_texts import Place, SourceTexts
from torchmill.plan.package_draft.summary import DraftReport, DraftTrial, summarize

SETUP = """\
import os, urllib.request
from setuptools import setup
from torch.utils.cpp_extension import CUDAExtension, BuildExtension
force = os.getenv("FORCE_CUDA", "0") == "1"
home = os.environ.get("SPAM_HOME")
if "SPAM_CUDA_ARCHS" in os.environ:
    archs = os.environ["SPAM_CUDA_ARCHS"]
flags = ["-gencode", "arch=compute_80,code=sm_80"]
setup(name="spam", version="1.2", ext_modules=[CUDAExtension("spam._C", ["a.cu"])])
"""


def texts_of(files: Mapping[str, str], sizes: Mapping[str, int] | None = None) -> SourceTexts:
    """Return a source with these texts, and further files of which only the sizes matter."""
    all_sizes = {name: len(text) for name, text in files.items()} | dict(sizes or {})
    return SourceTexts(all_sizes, files)


def source_of(
    files: Mapping[str, str], sizes: Mapping[str, int] | None = None, bindings: tuple[str, ...] = ()
) -> ReadSource:
    origin = SourceOrigin("PyPI's spam-1.2.tar.gz", on_index=True, sha256="0" * 64)
    return compose.read_source(origin, texts_of(files, sizes), Bindings(frozenset(bindings)))


def run_of(*sources: str, cuda: bool, **values: Any) -> SetupRun:
    """Return the run of a setup.py with one library."""
    kind = "CUDAExtension" if cuda else "CppExtension"
    flags = values.pop("flags", {})
    extension = Extension("spam._C", kind, sources, flags)
    return SetupRun(
        name="spam", version="1.2", packages=("spam",), extensions=(extension,), **values
    )


CPU_RUN = run_of("a.cpp", cuda=False)
CUDA_RUN = run_of("a.cpp", "a.cu", cuda=True)
FAILED = SetupRun(error=RunError("exception", "OSError: CUDA_HOME is not set", place="setup.py:9"))


def reading(name: str, default: str | None, run: SetupRun = CPU_RUN) -> SetupRun:
    """Return a run that asks for a variable."""
    variable = ReadVariable(name, default, Place("setup.py", 4))
    return SetupRun(
        name=run.name, extensions=run.extensions, error=run.error, variables=(variable,)
    )


# --- texts -----------------------------------------------------------------------------------------


def test_a_setup_script_is_read_without_being_run() -> None:
    script = read_setup_script(texts_of({"setup.py": SETUP}))
    defaults = {
        variable.name: (variable.default, variable.place.line) for variable in script.variables
    }
    assert defaults == {
        "FORCE_CUDA": ("0", 4),
        "SPAM_HOME": (None, 5),
        "SPAM_CUDA_ARCHS": (None, 6),
    }
    assert str(script.uses_extension_builder) == "setup.py:3"
    assert str(script.has_extensions) == "setup.py:9"
    assert script.arguments["version"][0] == "1.2"
    assert [place.line for place in script.downloads] == [1]
    assert {"os", "urllib", "setuptools", "torch"} == set(script.imports)


def test_constants_that_decide_what_is_compiled_are_read() -> None:
    text = "CPU_ONLY = False\nWITH_CUDA = True\nDEBUG = False\nUSE_GPU = 1\n"
    text += "WITH_CPU = False\nif CPU_ONLY or DEBUG or USE_GPU or WITH_CPU: WITH_CPU = True\n"
    script = read_setup_script(texts_of({"setup.py": text}))
    assert [(item.name, item.value, str(item.place)) for item in script.constants] == [
        ("CPU_ONLY", False, "setup.py:1")
    ]
    assert script.calls_cmake is None
    edit = change_constant(script.constants[0], cuda=False)
    assert edit.when == {"variant": "cpu"}
    assert edit.argv[-2:] == (r"s/^(CPU_ONLY\s*=\s*)False\b/\1True/", "setup.py")
    source_findings = findings.find_in_texts(
        texts_of({}), script, read_metadata(texts_of({}), script)
    )
    assert [str(item.place) for item in source_findings if item.subject == "constant"] == [
        "setup.py:1"
    ]


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        ("run(['cmake', folder])", True),
        ("os.system(f'mkdir x; cmake {folder}')", True),
        ("'It needs cmake 3.18.'", False),
    ],
)
def test_a_call_of_cmake_is_read(text: str, *, calls: bool) -> None:
    source = source_of({"setup.py": f"{SETUP}\n{text}\n"})
    assert (source.script.calls_cmake is not None) == calls
    data = toml_of(DryRuns(((WITHOUT_CUDA, CPU_RUN), (WITH_CUDA, CUDA_RUN)), "torch 2.9"), source)
    requires = [rule["requires"] for rule in data.get("rule", ()) if "requires" in rule]
    assert requires == ([["cmake"]] if calls else [])


def test_a_library_without_files_is_left_open() -> None:
    run = SetupRun(name="spam", extensions=(Extension("spam._C", "Extension", ()),))
    source = source_of({"setup.py": SETUP + "\nsystem('cmake .')\n"})
    runs = DryRuns(((WITHOUT_CUDA, run), (WITH_CUDA, run)), "torch 2.9")
    composed = compose.compose_draft(source, runs, name="", sessions=())
    assert composed.cuda_failure == "setup.py leaves it to another program, such as CMake"
    assert "CMake builds spam._C: its flags and files are not known" in composed.doubts
    assert composed.is_without_cuda
    trial = DraftTrial(cell="spam-3.11-cu132")
    lines = summarize(DraftReport(composed, "spam.toml", "torch", trial)).splitlines()
    assert lines[-1].startswith("next: `invoke build spam --cuda cpu`;")
    with_cuda = source_of({"setup.py": SETUP}, {"a.cu": 1})
    assert not compose.compose_draft(with_cuda, runs, name="", sessions=()).is_without_cuda


@pytest.mark.parametrize("has_setup", [True, False])
def test_a_backend_of_the_source_itself_runs_setup_py(*, has_setup: bool) -> None:
    pyproject = (
        '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["build"]\n'
    )
    files = {"pyproject.toml": pyproject, "PKG-INFO": "Name: spam\nVersion: 1.2\n\n"}
    source = source_of({**files, **({"setup.py": SETUP} if has_setup else {})})
    assert compose.drafts_can_run(source) == has_setup
    data = toml_of(DryRuns(), source)
    assert data.get("kind") == ("torch-extension" if has_setup else None)
    rules = [(rule.get("front_end"), rule.get("requires")) for rule in data["rule"]]
    assert rules == [("pep517", None), (None, ["build"])]


def test_a_package_that_cmake_builds_has_a_kind_of_its_own() -> None:
    pyproject = (
        '[project]\nname = "spam"\nversion = "1.2"\n[build-system]\n'
        'requires = ["scikit-build-core>=0.10", "torch"]\nbuild-backend = "scikit_build_core.build"\n'
    )
    data = toml_of(DryRuns(), source_of({"pyproject.toml": pyproject}))
    assert data["kind"] == "torch-cmake"
    (rule,) = data["rule"]
    assert rule["requires"] == ["scikit-build-core>=0.10"]


def test_a_setup_script_that_is_no_python_is_told() -> None:
    script = read_setup_script(texts_of({"setup.py": "print 'x'"}))
    assert script.problem
    assert not script.variables


def test_metadata_comes_from_the_first_file_that_has_it() -> None:
    files = {
        "PKG-INFO": "Metadata-Version: 2.1\nName: Spam_Eggs\nVersion: 1.2\n"
        "Requires-Dist: torch>=2.3\nRequires-Dist: pytest; extra == 'test'\n\nText\n",
        "pyproject.toml": '[project]\nname = "other"\nrequires-python = ">=3.9"\n'
        '[build-system]\nrequires = ["setuptools", "pybind11>=2", "torch==2.7.*"]\n'
        'build-backend = "setuptools.build_meta"\n',
    }
    texts = texts_of(files)
    metadata = read_metadata(texts, read_setup_script(texts))
    assert metadata.name
    assert (metadata.name.text, str(metadata.name.place)) == (
        "Spam_Eggs",
        "PKG-INFO:2",
    )
    assert metadata.requires_python
    assert str(metadata.requires_python.place) == "pyproject.toml:3"
    assert metadata.uses_setuptools
    assert [value.text for value in metadata.requires] == ["torch>=2.3"]
    assert draft.build_requirements(metadata, (), {"psutil": "psutil"}) == ("psutil", "pybind11>=2")
    torch, doubt = draft.torch_range(metadata, ())
    assert torch == ">=2.7"
    assert "==2.7.*" in doubt


@pytest.mark.parametrize(
    ("bounds", "oldest"),
    [
        (">=2.4,<3", "2.4"),
        ("~=2.6.0", "2.6.0"),
        ("", None),
        ("<2.9", None),
        ("==2.7.*", "2.7"),
        ("==2.7.1+cu128", "2.7.1"),
    ],
)
def test_the_oldest_torch_is_what_bounds_name(bounds: str, oldest: str | None) -> None:
    version = lower_bound(SpecifierSet(bounds))
    assert (str(version) if version else None) == oldest


@pytest.mark.parametrize("text", ["[project", "a = 1\na = 2", "a = " + "9" * 5000])
def test_a_broken_pyproject_is_a_finding(text: str) -> None:
    source = source_of({"pyproject.toml": text, "setup.py": SETUP})
    source_findings = findings.find_in_texts(source.texts, source.script, source.metadata)
    assert "pyproject.toml cannot be read" in str(source_findings[0])


def test_findings_name_their_places() -> None:
    files = {
        "setup.py": SETUP,
        ".gitmodules": '[submodule "x"]\n\tpath = third_party/cutlass\n\turl = https://x\n',
        "CMakeLists.txt": "cmake_minimum_required(VERSION 3.18)\n",
        "cmake/bind.cmake": "FetchContent_Declare(pybind11\n  URL x)\n",
        "flags.cmake": "set(X 1)\nset(CMAKE_CXX_STANDARD 14)\n",
    }
    source = source_of(files, {"csrc/big.cu": 200_000, "csrc/small.cpp": 10})
    lines = [
        str(finding)
        for finding in findings.find_in_texts(source.texts, source.script, source.metadata)
    ]
    for words in (
        "third_party/cutlass is empty",
        "it can download (lines 1)",
        "CMake can download pybind11; a build has no network (cmake/bind.cmake:1)",
        "SPAM_CUDA_ARCHS may name the capabilities to compile for (setup.py:6)",
        "CMAKE_CXX_STANDARD 14 is named (flags.cmake:2)",
        "1 files for CUDA",
    ):
        assert any(words in line for line in lines), (words, lines)


# --- scenarios ---------------------------------------------------------------------------------------


def test_nothing_further_is_tried_if_both_builds_are_there() -> None:
    assert further_scenarios(CPU_RUN, CUDA_RUN) == []


def test_variables_that_switch_nothing_are_not_tried() -> None:
    run = SetupRun(
        variables=tuple(
            ReadVariable(name, default, Place("setup.py", 1))
            for name, default in (
                ("FORCE_CUDA", "0"),
                ("SPAM_WITH_OPS", "TRUE"),
                ("CUDA_HOME", None),
                ("MAX_JOBS", None),
                ("SPAM_CUDA_ARCHS", ""),
                ("SPAM_MODE", "fast"),
            )
        )
    )
    tried = further_scenarios(CPU_RUN, run)
    assert [dict(scenario.variables) for scenario in tried if scenario.variables] == [
        {"FORCE_CUDA": "1"},
        {"SPAM_WITH_OPS": "FALSE"},
    ]
    assert any(scenario.nvcc_on_path for scenario in tried)
    assert any(scenario.gpu for scenario in tried)


def test_a_variable_wins_over_nvcc_on_path_and_that_over_a_gpu() -> None:
    switch = Scenario(cuda=True, variables={"FORCE_CUDA": "1"})
    only = Scenario(cuda=True, variables={"FORCE_ONLY_CUDA": "1"})
    path = Scenario(cuda=True, nvcc_on_path=True)
    gpu = Scenario(cuda=True, gpu=True)
    smaller = run_of("a.cu", cuda=True)
    tried = [(WITH_CUDA, CPU_RUN), (gpu, CUDA_RUN), (path, CUDA_RUN), (only, smaller)]
    assert choose_scenario([*tried, (switch, CUDA_RUN)], cuda=True) == (switch, CUDA_RUN)
    assert choose_scenario(tried[:3], cuda=True) == (path, CUDA_RUN)
    assert choose_scenario(tried[:2], cuda=True) == (gpu, CUDA_RUN)
    assert choose_scenario(tried[:1], cuda=True) is None
    assert choose_scenario([(WITHOUT_CUDA, FAILED)], cuda=False) is None


def test_edits_are_proposed_for_what_a_run_shows_and_kept_if_they_work() -> None:
    text = SETUP + (
        "if torch.cuda.is_available():\n    os.environ['TORCH_CUDA_ARCH_LIST'] = '7.0'\n"
        "cxx = ['-march=native']\n"
    )
    texts = texts_of({"setup.py": text})
    flags = {"nvcc": ["-gencode", "arch=compute_80,code=sm_80"], "cxx": ["-march=native"]}
    run = run_of("a.cu", cuda=True, flags=flags, changed={"TORCH_CUDA_ARCH_LIST": "7.0"})
    edits = propose_edits(texts, Scenario(cuda=True, gpu=True), run)
    assert [edit.purpose for edit in edits] == ["gpu", "capabilities", "arch list", "processor"]
    assert all(edit.argv[-1] == "setup.py" for edit in edits)
    assert [edit_works(edit, WITH_CUDA, run) for edit in edits] == [True, False, False, False]
    assert all(edit_works(edit, WITH_CUDA, CUDA_RUN) for edit in edits)
    assert not any(edit_works(edit, WITH_CUDA, CPU_RUN) for edit in edits)
    assert run.extensions[0].capabilities == ("8.0",)
    assert propose_edits(texts, WITH_CUDA, CUDA_RUN) == []


def test_a_build_without_cuda_is_made_for_any_processor() -> None:
    texts = texts_of({"setup.py": SETUP + "cxx = ['-march=native']\n"})
    run = run_of("a.cpp", cuda=False, flags={"cxx": ["-march=native"]})
    (edit,) = propose_edits(texts, WITHOUT_CUDA, run)
    assert (edit.purpose, edit.when) == ("processor", {})
    assert not edit_works(edit, WITHOUT_CUDA, run)
    assert edit_works(edit, WITHOUT_CUDA, CPU_RUN)
    assert not edit_works(edit, WITHOUT_CUDA, FAILED)


# --- drafts --------------------------------------------------------------------------------------------


def toml_of(dry_runs: DryRuns, source: ReadSource, **values: Any) -> dict[str, Any]:
    """Return the content of the file that a draft makes."""
    composed = compose.compose_draft(source, dry_runs, name="", sessions=values.get("sessions", ()))
    return tomllib.loads(draft_as_toml(composed))


def test_requirements_for_different_pythons_are_all_kept() -> None:
    expected = (
        "eggs; python_version >= '3.7'",
        "eggs<2; python_version < '3.7'",
        "eggs; python_version >= '3.7'",
    )
    run = replace(CPU_RUN, setup_requires=expected)
    data = toml_of(DryRuns(((WITHOUT_CUDA, run),), "torch 2.9"), source_of({"setup.py": SETUP}))
    (requires,) = [rule["requires"] for rule in data["rule"] if "requires" in rule]
    assert requires == ['eggs; python_version >= "3.7"', 'eggs<2; python_version < "3.7"']


def test_a_draft_has_the_switch_that_a_run_has_shown() -> None:
    switch = Scenario(cuda=True, variables={"FORCE_CUDA": "1"})
    runs = DryRuns(((WITHOUT_CUDA, CPU_RUN), (WITH_CUDA, CPU_RUN), (switch, CUDA_RUN)), "torch 2.9")
    source = source_of({"setup.py": SETUP}, bindings=("a.cpp",))
    data = toml_of(runs, source)
    assert (data["name"], data["kind"], data["import_name"]) == ("spam", "torch-extension", "spam")
    assert data["smoke"] == ["import torch, spam, spam._C"]
    (release,) = data["release"]
    assert (release["version"], release["torch"], release["sha256"]) == ("1.2", ">=2.0", "0" * 64)
    assert "built" not in release
    rules = {tuple(rule.get("set", {}).items()): rule for rule in data["rule"]}
    assert rules[("FORCE_CUDA", "1"),]["when"] == {"cuda": ">=0"}
    assert not any(rule.get("conflict") for rule in data["rule"])


def test_a_package_without_a_cpu_build_refuses_that_variant() -> None:
    runs = DryRuns(((WITHOUT_CUDA, FAILED), (WITH_CUDA, CUDA_RUN)), "torch 2.9")
    (rule,) = list(toml_of(runs, source_of({"setup.py": SETUP}))["rule"])
    assert rule["conflict"] is True
    assert rule["when"] == {"variant": "cpu"}
    assert "setup.py:9: OSError" in rule["reason"]


def test_strange_texts_make_valid_toml() -> None:
    error = RunError("exception", 'Oops: "quoted" \\ \x7f\n[[release]]', place="setup.py:1")
    runs = DryRuns(((WITHOUT_CUDA, SetupRun(error=error)), (WITH_CUDA, CUDA_RUN)), "torch 2.9")
    data = toml_of(runs, source_of({"setup.py": SETUP}))
    assert len(data["release"]) == 1


@pytest.mark.parametrize(
    "files",
    [
        {"setup.py": "import pkg_resources\nfrom distutils.core import Extension\n"},
        {"CMakeLists.txt": "set(CMAKE_CXX_STANDARD 17)\n", "README.md": "needs -std=c++20\n"},
    ],
)
def test_files_that_rules_or_setuptools_mend_are_not_searched(files: dict[str, str]) -> None:
    texts = texts_of(files)
    script = read_setup_script(texts)
    source_findings = findings.find_in_texts(texts, script, read_metadata(texts, script))
    assert not {"import", "standard"} & {finding.subject for finding in source_findings}


@pytest.mark.parametrize(
    ("name", "other_sessions", "session"),
    [
        ("torch-spline-conv", (), "spline-conv"),
        ("Torch_Scatter", ("scatter",), "torch-scatter"),
        ("pytorch-fast-transformers", (), "fast-transformers"),
        ("gsplat", (), "gsplat"),
    ],
)
def test_sessions_are_short_and_free(
    name: str, other_sessions: tuple[str, ...], session: str
) -> None:
    assert draft.session_of(name, other_sessions) == session


@pytest.mark.parametrize(
    ("name", "packages", "expected"),
    [
        ("pytorch-fast-transformers", ("fast_transformers", "tests"), "fast_transformers"),
        ("MinkowskiEngine", ("MinkowskiEngine.utils", "MinkowskiEngine"), "MinkowskiEngine"),
        ("natten", ("natten/",), "natten"),
        ("spam", ("tests", "eggs"), "eggs"),
    ],
)
def test_the_import_name_is_the_nearest_package(
    name: str, packages: tuple[str, ...], expected: str
) -> None:
    assert draft.import_name_of(name, [SetupRun(packages=packages)], texts_of({})) == expected


def test_a_wheel_is_downloaded_only_if_nothing_forces_a_build() -> None:
    text = SETUP.replace("FORCE_CUDA", "SPAM_FORCE_BUILD").replace('"0"', '"FALSE"')
    script = read_setup_script(texts_of({"setup.py": text}))
    settings = draft.force_build_settings(script, ())
    assert settings["SPAM_FORCE_BUILD"][0] == "TRUE"


# --- what needs no draft ---------------------------------------------------------------------------------


def test_a_package_that_compiles_nothing_is_refused() -> None:
    source = source_of({"setup.py": "from setuptools import setup\nsetup(name='spam')\n"})
    compose.refuse_without_run(source)
    empty = SetupRun(name="spam", version="1.2", packages=("spam",))
    with refused("nothing-to-compile") as caught:
        compose.refuse_after_runs(
            source, DryRuns(((WITHOUT_CUDA, empty), (WITH_CUDA, empty)), "torch 2.9")
        )
    assert "`pip install " in str(caught.value)


def test_a_pure_package_of_another_backend_is_refused_at_once() -> None:
    pyproject = '[build-system]\nrequires = ["hatchling"]\nbuild-backend = "hatchling.build"\n'
    with refused("nothing-to-compile"):
        compose.refuse_without_run(source_of({"pyproject.toml": pyproject}))
    cmake = pyproject.replace("hatchling.build", "scikit_build_core.build")
    with refused("no-extension-of-torch"):
        compose.refuse_without_run(source_of({"pyproject.toml": cmake}))
    compose.refuse_without_run(
        source_of(
            {
                "pyproject.toml": cmake.replace("hatchling", "scikit-build-core', 'torch").replace(
                    "'", '"'
                )
            }
        )
    )


def test_what_a_switch_asks_for_in_vain_is_named() -> None:
    empty = SetupRun(name="spam", version="1.2", packages=("spam",))
    vain = Scenario(cuda=True, variables={"SPAM_LEGACY": "1"})
    tried = ((WITHOUT_CUDA, empty), (WITH_CUDA, empty), (vain, FAILED))
    source = source_of({"setup.py": "from setuptools import setup\nsetup(name='spam')\n"})
    with refused("nothing-to-compile") as caught:
        compose.refuse_after_runs(source, DryRuns(tried, "torch 2.9"))
    assert "with SPAM_LEGACY=1, setup.py says: OSError" in str(caught.value)


def test_an_archive_without_its_sources_is_refused() -> None:
    tried = ((WITHOUT_CUDA, CPU_RUN), (WITH_CUDA, CUDA_RUN))
    with refused("sources-absent"):
        compose.refuse_after_runs(source_of({"setup.py": SETUP}), DryRuns(tried, "torch 2.9"))
    source = source_of({"setup.py": SETUP}, {"a.cpp": 1})
    compose.refuse_after_runs(source, DryRuns(tried, "torch 2.9"))
    composed = compose.compose_draft(source, DryRuns(tried, "torch 2.9"), name="", sessions=())
    assert composed.doubts[0] == "1 of the files to compile are not there, such as a.cu"


def test_a_package_for_rocm_alone_is_refused() -> None:
    with refused("rocm-alone"):
        compose.refuse_without_run(source_of({"setup.py": SETUP}, {"csrc/kernel.hip": 1}))
    compose.refuse_without_run(
        source_of({"setup.py": SETUP}, {"csrc/kernel.hip": 1, "csrc/kernel.cu": 1})
    )
    error = RunError("exception", "RuntimeError: ROCm is needed", place="setup.py:3")
    failed = SetupRun(error=error)
    with refused("rocm-alone"):
        compose.refuse_after_runs(
            source_of({"setup.py": SETUP}),
            DryRuns(((WITHOUT_CUDA, failed), (WITH_CUDA, failed)), "t"),
        )


def test_a_setup_script_that_needs_a_network_is_refused() -> None:
    error = RunError("exception", "URLError: no network", place="setup.py:3")
    failed = SetupRun(error=error, network=("example.org",))
    with refused("setup-needs-network") as caught:
        compose.refuse_after_runs(
            source_of({"setup.py": SETUP}),
            DryRuns(((WITHOUT_CUDA, failed), (WITH_CUDA, failed)), "t"),
        )
    assert "example.org" in str(caught.value)


def test_names_of_packages_with_facts_are_taken() -> None:
    source = source_of({"setup.py": SETUP})
    composed = compose.compose_draft(
        source, DryRuns(((WITH_CUDA, CUDA_RUN),), "torch 2.9"), name="", sessions=()
    )
    compose.refuse_taken_names(composed, {}, {})
    with refused("package-has-facts"):
        compose.refuse_taken_names(composed, {"spam": "spam"}, {})
    with refused("import-name-taken"):
        compose.refuse_taken_names(composed, {}, {"spam": "eggs"})


def test_a_source_without_a_version_is_refused() -> None:
    with refused("nameless-source"):
        compose.compose_draft(source_of({"setup.py": "setup()"}), DryRuns(), name="x", sessions=())


def test_a_record_is_read() -> None:
    record: dict[str, Any] = {
        "variables": {"FORCE_CUDA": ["0", "setup.py:4"]},
        "network": [],
        "programs": [],
        "error": None,
        "setup": {
            "name": "spam",
            "version": "1.2",
            "requires_python": None,
            "packages": ["spam"],
            "modules": [],
            "package_dir": {},
            "extensions": [
                {
                    "name": "spam._C",
                    "kind": "CUDAExtension",
                    "sources": ["a.cu"],
                    "flags": {"nvcc": ["-gencode=arch=compute_90a,code=sm_90a", "-std=c++17"]},
                    "defines": [],
                    "includes": [],
                    "libraries": [],
                    "limited_api": False,
                }
            ],
            "setup_requires": [],
            "install_requires": [],
            "use_ninja": False,
        },
    }
    run = parse_run(record)
    assert run.has_cuda
    assert run.extensions[0].capabilities == ("9.0",)
    assert run.extensions[0].standards == ("17",)
    assert run.variables[0].place.line == 4
