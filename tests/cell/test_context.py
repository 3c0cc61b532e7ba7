"""The last look at the machine before a session changes anything."""

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest
from packaging.specifiers import SpecifierSet

from tests.support.changed_facts import change_facts, change_groups
from tests.support.contexts import HOST, job
from tests.support.hosts import change_host
from tests.support.refusals import refused
from torchmill.cell import cache_setup, context, environment, machine_inputs
from torchmill.cell.manifest import compose_manifest
from torchmill.cell.pipeline import preflight
from torchmill.cell.up_to_date import StageLog, StageRecord
from torchmill.config.facts import Facts, OfferedWheels
from torchmill.config.linux_distribution import LinuxDistribution
from torchmill.config.rule import OfficialPart, When
from torchmill.host.host import Compiler, Host
from torchmill.plan.build_options import Options
from torchmill.wheel import dist_files

# what git tells a hook, and a packager an installer
HOOK = (
    "GIT_DIR",
    "GIT_WORK_TREE",
    "GIT_INDEX_FILE",
    "GIT_OBJECT_DIRECTORY",
    "GIT_COMMON_DIR",
    "DESTDIR",
)


def test_warnings_are_noted_once_and_stop_nothing(small_facts: Facts, tmp_path: Path) -> None:
    noted: list[str] = []
    preflight(job(small_facts, tmp_path, HOST), noted.append)
    assert [line.partition(":")[0] for line in noted] == ["glibc"]


@pytest.mark.parametrize("name", ["dist", ".torchmill/logs"])
def test_a_folder_that_is_written_at_the_end_is_tried_at_the_beginning(
    small_facts: Facts, tmp_path: Path, name: str
) -> None:
    begun = job(small_facts, tmp_path, HOST)
    folder = begun.layout.root / name
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.symlink_to(tmp_path / "a disk that is not mounted")
    with refused("not-writable") as caught:
        preflight(begun, print)
    assert str(folder) in str(caught.value)
    folder.unlink()
    preflight(begun, print)
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(
    "name", ["a|b", "a,b", "a:b", 'a"b', "$a", "a;b", "a[b]", "a\\b", "a\nb", "{a}", "a\udce9"]
)
def test_a_name_that_cmake_misreads_is_told_before_anything_is_built(
    small_facts: Facts, tmp_path: Path, name: str
) -> None:
    begun = job(small_facts, tmp_path, HOST)
    with refused("host-not-ready") as caught:
        preflight(replace(begun, layout=replace(begun.layout, root=tmp_path / name)), print)
    assert "folder: " in str(caught.value)
    preflight(replace(begun, layout=replace(begun.layout, root=tmp_path / "ä b%'(#)&<>")), print)


def test_a_wrong_time_of_the_wheel_is_told_before_anything_is_built(
    small_facts: Facts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "yesterday")
    with refused("invalid-source-date-epoch"):
        preflight(job(small_facts, tmp_path, HOST), print)


def test_a_published_wheel_is_noted_with_what_is_known_of_it(
    small_facts: Facts, tmp_path: Path
) -> None:
    release = change_groups(
        small_facts.releases["base"][0], upstream={"wheels": {"manylinux1_x86_64": ("3.10",)}}
    )
    index = (
        "pypi",
        "https://pypi.org/simple",
        ("base",),
        SpecifierSet(">=1"),
        ("cpu",),
        ("x86_64",),
        "test",
        "",
        True,
    )
    releases = {**small_facts.releases, "base": (release, *small_facts.releases["base"][1:])}
    facts, noted = (
        replace(small_facts, releases=releases, offered_wheels=(OfferedWheels(*index),)),
        list[str](),
    )
    host = change_host(HOST, platform={"glibc": "2.36"})
    preflight(job(facts, tmp_path, host), noted.append)
    assert noted[0].startswith(
        "the official wheel, `pip install base==1.0.0`: cannot tell whether it fits: "
    )
    noted.clear()
    preflight(job(facts, tmp_path, host, options=Options(settings={"CFLAGS": "-O2"})), noted.append)
    assert not any("would do as well" in line for line in noted)


def test_everything_that_is_missing_is_told_with_its_cure(
    small_facts: Facts, tmp_path: Path
) -> None:
    place = LinuxDistribution("debian", "12")
    machine = change_host(
        HOST,
        platform={"distribution": place},
        compilers={"default": None},
        programs={"paths": {"git": "/usr/bin/git"}},
        interpreters={"paths": {}},
    )
    noted: list[str] = []
    with refused("host-not-ready") as caught:
        preflight(job(small_facts, tmp_path, machine), noted.append)
    head, *lines = str(caught.value).splitlines()
    assert head == "wheel-3.10-cpu cannot be built on this machine yet:"
    assert [line.strip().partition(":")[0] for line in lines] == ["interpreter", "C++ compiler"]
    assert lines[1].endswith("apt-get install --yes --no-install-recommends build-essential")
    assert noted == []


def test_a_source_whose_bundled_folders_are_empty_is_refused(
    small_facts: Facts, tmp_path: Path
) -> None:
    begun = job(small_facts, tmp_path, HOST)
    folders = ("third_party/full", "third_party/empty", "gone")
    tree = replace(begun.plan.tree, required_folders=folders)
    begun = replace(begun, plan=replace(begun.plan, tree=tree))
    (begun.source.path / "third_party/empty").mkdir(parents=True)
    (begun.source.path / "third_party/full/src").mkdir(parents=True)
    with refused("empty-folders") as caught:
        preflight(begun, print)
    assert str(caught.value).startswith("wheel-3.10-cpu: third_party/empty, gone in ")


def test_a_build_that_does_not_fit_is_refused_before_it_starts(
    small_facts: Facts, tmp_path: Path
) -> None:
    large = change_groups(small_facts.packages["base"], setup={"disk": 2**60})
    facts = replace(small_facts, packages={**small_facts.packages, "base": large})
    noted: list[str] = []
    with refused("host-not-ready") as caught:
        preflight(job(facts, tmp_path, HOST), noted.append)
    assert "(the build does not fit): `invoke clean --free" in str(caught.value)


def test_a_cache_folder_that_cannot_be_written_is_noted(
    small_facts: Facts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cache").touch()  # in place of the folder
    begun = job(
        small_facts,
        tmp_path,
        change_host(HOST, programs={"paths": {**HOST.programs.paths, "ccache": "/usr/bin/ccache"}}),
    )
    noted: list[str] = []
    monkeypatch.setenv("CCACHE_DIR", str(tmp_path / "own"))
    assert "CCACHE_DIR" in cache_setup.set_up_compiler_cache(begun, noted.append).variables
    assert noted == []
    monkeypatch.delenv("CCACHE_DIR")
    assert cache_setup.set_up_compiler_cache(begun, noted.append).variables == {}
    (said,) = noted
    assert said.startswith(f"{tmp_path}/cache/ccache cannot be written (")
    assert said.endswith("XDG_CACHE_HOME=DIR gives it another place")


def test_the_users_own_cache_and_launchers_stay_and_the_plan_has_the_last_word(
    small_facts: Facts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = job(small_facts, tmp_path, HOST)
    monkeypatch.setenv("CCACHE_PREFIX", "distcc")
    monkeypatch.setenv("MAX_JOBS", "99")
    monkeypatch.setenv("USE_FAST", "1")  # the package unsets USE_*
    monkeypatch.setenv("MILLGUARD_GATE", "/of/another/build")
    monkeypatch.setenv("MILLGUARD_GATED", "1")
    for name in HOOK:
        monkeypatch.setenv(name, "/of/a/repository/with/a/hook")
    found = environment.build_environment(
        begun, {"CCACHE_PREFIX": "/gate", "CMAKE_C_COMPILER_LAUNCHER": "/gate"}
    )
    assert found["CCACHE_PREFIX"] == "distcc"
    assert found["CMAKE_C_COMPILER_LAUNCHER"] == "/gate"
    assert found["MAX_JOBS"] == "4"
    assert {"USE_FAST", "MILLGUARD_GATE", "MILLGUARD_GATED", *HOOK}.isdisjoint(found)
    assert found["GIT_CEILING_DIRECTORIES"] == str(begun.tree.folder)
    assert (
        not set(HOOK) & machine_inputs.read_user_variables(os.environ, begun.plan, "linux").keys()
    )


def test_compilers_speak_english_whatever_the_users_locale_is(
    small_facts: Facts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gate knows by their words which ran out of memory; only the letters of files stay the user's."""
    for name in (one for one in os.environ if one == "LANG" or one.startswith("LC_")):
        monkeypatch.delenv(name)
    begun = job(small_facts, tmp_path, HOST)
    for name, value in {"LANG": "de_DE.UTF-8", "LANGUAGE": "de", "LC_NUMERIC": "de_DE"}.items():
        monkeypatch.setenv(name, value)

    def locale() -> dict[str, str]:
        found = environment.build_environment(begun, {})
        return {name: found[name] for name in found if name.startswith(("LANG", "LC_"))}

    assert locale() == {"LC_CTYPE": "de_DE.UTF-8"}
    monkeypatch.setenv("LC_ALL", "fr_FR.ISO-8859-1")
    assert locale() == {"LC_CTYPE": "fr_FR.ISO-8859-1"}
    for name in ("LC_ALL", "LANG"):
        monkeypatch.delenv(name)
    assert locale() == {}


def test_a_shared_cache_of_a_wrong_name_is_told_before_anything_is_built(
    small_facts: Facts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHMILL_CACHE", "redis://")
    with refused("invalid-cache-setting"):
        preflight(job(small_facts, tmp_path, HOST), print)


@pytest.mark.parametrize("identifier", ["wheel-3.10-cpu", "vision-3.10-cpu"])
def test_compilers_are_told_of_the_environment_by_a_path_that_is_the_same_in_every_tree(
    small_facts: Facts, tmp_path: Path, identifier: str
) -> None:
    begun = job(small_facts, tmp_path, HOST, identifier)
    assert begun.placeholders["venv"] == str(begun.tree.folder / "env")
    assert begun.placeholders["python"] == str(begun.tree.folder / "env/bin/python")
    windows = replace(begun, host=replace(HOST, system="windows"))
    assert windows.placeholders["venv"] == str(begun.venv), "where links are not everyone's to make"


def test_a_toolkit_that_only_the_shell_names_is_noted_and_not_used(
    small_facts: Facts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, other = tmp_path / "cuda-11.8", tmp_path / "cuda-12.4"
    for folder in (ours, other):
        folder.mkdir()
    machine = change_host(
        HOST,
        compilers={"default": Compiler("gcc", "11.4.0")},
        toolkits={
            "homes": {"11.8": str(ours), "12.4": str(other)},
            "libraries": {"cudnn": "8.6.0"},
        },
    )
    begun = job(small_facts, tmp_path, machine, "wheel-3.10-cu118")
    assert begun.placeholders["cuda_home"] == str(ours)
    noted: list[str] = []
    monkeypatch.setenv("CUDA_HOME", str(other))
    preflight(begun, noted.append)
    assert noted[0].startswith(f"CUDA_HOME={other} holds CUDA 12.4; the build needs CUDA 11.8")
    monkeypatch.setenv("CUDA_HOME", str(ours))
    noted.clear()
    preflight(begun, noted.append)
    assert not any("CUDA_HOME" in line for line in noted)


def test_the_base_is_built_with_the_same_toolkit(small_facts: Facts, tmp_path: Path) -> None:
    begun = job(
        small_facts,
        tmp_path,
        HOST,
        "vision-3.10-cu118",
        Options(settings={"CFLAGS": "-g"}, toolkit="11.8", arch_list="8.6", guard=False),
    )
    assert list(context.missing_sessions(begun)) == [
        [
            *("-s", "wheel-3.10-cu118", "--"),
            *("--arch-list=8.6", "--toolkit=11.8", "--no-guard"),
        ]
    ]
    wheel = begun.layout.dist / "base-1.0.0+cu118-cp310-cp310-linux_x86_64.whl"
    wheel.parent.mkdir()
    wheel.with_name(wheel.name.replace("x86_64", "aarch64")).touch()  # of a container
    assert context.base_wheel(begun) is None
    wheel.with_name(wheel.name.replace("linux_x86_64", "linux_zz_aarch64")).touch()
    wheel.touch()
    assert context.base_wheel(begun) == wheel
    assert list(context.missing_sessions(begun)) == []
    dist_files.manifest_path(wheel).write_text(json.dumps({"sha256": "0" * 64}))
    assert context.base_wheel(begun) is None, "it is not what its manifest says: it is made again"


def test_what_a_package_imports_is_built_before_it(small_facts: Facts, tmp_path: Path) -> None:
    addon = change_groups(small_facts.packages["addon"], checks={"imports": ("base",)})
    facts = replace(small_facts, packages={**small_facts.packages, "addon": addon})
    begun = job(facts, tmp_path, HOST, "vision-3.10-cpu", Options(torch="PyPI", jobs=2))
    assert list(context.missing_sessions(begun)) == [
        ["-s", "wheel-3.10-cpu", "--", "--jobs=2", "--torch=PyPI"]
    ]
    wheels = [
        begun.layout.dist / f"base-{name}-linux_x86_64.whl"
        for name in ("1.0.0+cu118-cp310-cp310", "2.0+cpu-cp310-cp310")
    ]
    wheels[0].parent.mkdir()
    for wheel in wheels:
        wheel.touch()
    assert context.imported_wheel(begun, small_facts.packages["base"]) == wheels[1]
    assert list(context.missing_sessions(begun)) == []


def test_of_several_imported_wheels_the_newest_version_counts(
    small_facts: Facts, tmp_path: Path
) -> None:
    begun = job(small_facts, tmp_path, HOST, "vision-3.10-cpu", Options(torch="PyPI"))
    begun.layout.dist.mkdir(parents=True)
    for version in ("2.10", "2.9"):
        (begun.layout.dist / f"base-{version}+cpu-cp310-cp310-linux_x86_64.whl").touch()
    wheel = context.imported_wheel(begun, small_facts.packages["base"])
    assert wheel is not None
    assert wheel.name.startswith("base-2.10+cpu-")


def test_what_the_official_wheel_has_beyond_this_one_is_noted_and_in_the_manifest(
    small_facts: Facts, tmp_path: Path
) -> None:
    part = OfficialPart(
        "a fast loop", When(), "a test", ("USE_LOOP=1",), cost="it is slow", brings="set USE_LOOP"
    )
    made = job(change_facts(small_facts, official={"parts": (part,)}), tmp_path, HOST)
    noted: list[str] = []
    preflight(made, noted.append)
    assert any(
        line.startswith("a fast loop") and "it is slow" in line and "set USE_LOOP" in line
        for line in noted
    )
    stages = StageLog(made, {})
    stages.valid = {"pack": StageRecord({}, "0" * 64)}
    manifest = compose_manifest(made, stages, "base.whl")
    assert manifest["lacks"] == ["a fast loop (it is slow): set USE_LOOP"]


def test_variables_of_the_shell_that_a_build_does_not_get_are_noted(
    small_facts: Facts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("USE_CUDA", "0")
    monkeypatch.setenv("NO_COLOR", "1")
    noted: list[str] = []
    preflight(job(small_facts, tmp_path, HOST), noted.append)
    (said,) = [line for line in noted if line.startswith("not read from your shell")]
    assert "USE_CUDA" in said
    assert "NO_COLOR" not in said


def test_a_build_without_cuda_finds_no_nvcc_and_all_other_programs(
    small_facts: Facts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toolkit, distribution = tmp_path / "cuda/bin", tmp_path / "usr/bin"
    for folder, names in ((toolkit, ("nvcc", "cuobjdump")), (distribution, ("nvcc", "c++"))):
        folder.mkdir(parents=True)
        for name in names:
            (folder / name).write_text("#!/bin/sh\n")
            (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{toolkit}{os.pathsep}{distribution}")
    monkeypatch.setenv("CUDA_HOME", str(toolkit.parent))
    variables = environment.build_environment(job(small_facts, tmp_path, HOST), {})
    assert "CUDA_HOME" not in variables
    assert shutil.which("nvcc", path=variables["PATH"]) is None
    for program in (toolkit / "cuobjdump", distribution / "c++"):
        visible = shutil.which(program.name, path=variables["PATH"])
        assert visible is not None
        assert Path(visible).resolve() == program
    (distribution / "c++").unlink()
    variables = environment.build_environment(job(small_facts, tmp_path, HOST), {})
    assert shutil.which("c++", path=variables["PATH"]) is None, (
        "what was removed does not stay visible"
    )


def test_a_compiler_that_is_named_by_its_path_is_asked_what_it_is(
    small_facts: Facts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of the same name on PATH says nothing of it."""
    seen: list[Host] = []

    def stop(_: Facts, __: str, host: Host, *___: object) -> NoReturn:
        seen.append(host)
        raise LookupError

    (own := tmp_path / "g++").write_text(
        "#!/bin/sh\n[ $1 = --version ] && echo 'g++ 9.5.0, Free Software Foundation' || echo 9.5.0\n"
    )
    own.chmod(0o755)
    monkeypatch.setattr(
        context,
        "measure_host",
        lambda *_, **__: change_host(
            HOST, compilers={"by_command": {"g++": Compiler("gcc", "13.2.0")}}
        ),
    )
    monkeypatch.setattr(context, "resolve_processor", stop)
    monkeypatch.setenv("TORCHMILL_HOME", str(tmp_path))
    cell = job(small_facts, tmp_path, HOST).cell
    with pytest.raises(LookupError):
        context.create_context(tmp_path, small_facts, cell, [f"--set=CXX={own}"], tmp_path / "venv")
    assert seen[0].compilers.of_command(str(own)) == Compiler("gcc", "9.5.0")
