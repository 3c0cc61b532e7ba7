"""Plans: what a build will do on any host, present or described, and the digests that follow from it."""

import runpy
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from string import Template
from textwrap import dedent
from types import SimpleNamespace

import pytest
from packaging.tags import mac_platforms
from press_support import compiled_wheels

from tests.support.hosts import change_host
from tests.support.refusals import refused
from torchmill.cell.context import fill_placeholders
from torchmill.config import facts_reader
from torchmill.config.build import Build
from torchmill.config.facts import Facts
from torchmill.config.linux_distribution import LinuxDistribution
from torchmill.config.release_lookup import find_release
from torchmill.fetch.source.source import Source
from torchmill.host.host import Compiler, Host, HostPlatform, HostResources
from torchmill.plan import (
    base_package,
    build_plan,
    cell_lookup,
    matrix,
    system_packages,
    wheel_name,
)
from torchmill.plan.build_options import Options
from torchmill.plan.cell import Cell
from torchmill.plan.input_digests import (
    compile_key,
    describe_changed_inputs,
    environment_key,
    tree_inputs,
    tree_key,
)
from torchmill.plan.plan import Plan

GIB = 1024**3
LINUX = Host(
    "x86_64", "linux", HostResources(cores=8, memory=32 * GIB), platform=HostPlatform(glibc="2.36")
)


def planned(
    known: Facts, name: str, tag: str, host: Host = LINUX, options: Options | None = None
) -> Plan:
    release = find_release(known, "base", tag)
    cell = cell_lookup.find_cell(known, name, host.arch, release)
    return build_plan.compute_plan(known, cell, host, options or Options())


def test_the_official_label_and_name(known: Facts) -> None:
    made = planned(known, "wheel-3.10-cpu", "v1.0.0")
    assert made.wheel.version == "1.0.0+cpu"
    assert made.wheel.file_name == "base-1.0.0+cpu-cp310-cp310-manylinux_2_36_x86_64.whl"
    assert made.variables["BASE_VERSION"] == "1.0.0+cpu"


EXTENSIONS = (
    "vision",
    "audio",
    "scatter",
    "cluster",
    "sparse",
    "flash",
    "conv1d",
    "mamba",
    "xformers",
)


@compiled_wheels.needs_compiler
@pytest.mark.parametrize("session", EXTENSIONS)
def test_an_extension_names_no_folder_in_its_messages(
    shipped: Facts, session: str, tmp_path: Path
) -> None:
    """As ninja calls the compiler, by whole paths, and as ccache does, by paths from where it works."""
    name = f"{session}-3.11-{'cu126' if session in {'flash', 'conv1d', 'mamba', 'xformers'} else 'cpu'}"
    release = find_release(shipped, "torch", "v2.10.0")
    cell = cell_lookup.find_cell(shipped, name, "x86_64", release)
    gcc, clang = (
        change_host(LINUX, compilers={"default": Compiler(*each)})
        for each in (("gcc", "12.2.0"), ("clang", "14.0.0"))
    )
    plans = [build_plan.compute_plan(shipped, cell, host, Options()) for host in (gcc, clang)]
    source, header = tmp_path / "source", tmp_path / "env/lib/torch.h"
    (flags,) = {one.variables[word] for one in plans for word in ("CFLAGS", "CXXFLAGS")}
    flags = Template(flags).substitute(tree=tmp_path, source=source)
    work = source / "build/temp.linux"
    for path in (source / "csrc", header.parent, work):
        path.mkdir(parents=True)
    header.write_text("__FILE__\n")
    (source / "csrc/a.cpp").write_text("#include <torch.h>\n__FILE__\n")
    for near, far in ((source, tmp_path), (Path("../.."), Path("../../.."))):
        argv = ["c++", *flags.split(), f"-I{far}/env/lib", "-E", "-P", f"{near}/csrc/a.cpp"]
        done = subprocess.run(argv, cwd=work, capture_output=True, text=True, check=True)
        assert done.stdout.split() == ['"./env/lib/torch.h"', '"./csrc/a.cpp"']


def test_macos_has_no_label(known: Facts) -> None:
    mac = Host("arm64", "macos", HostResources(cores=8, memory=32 * GIB))
    made = planned(known, "wheel-3.10-cpu", "v1.0.0", mac)
    assert made.wheel.file_name == "base-1.0.0-cp310-cp310-macosx_11_0_arm64.whl"


def test_labels_on_request(known: Facts) -> None:
    git = planned(known, "wheel-3.10-cpu", "v1.0.0", options=Options(label="git"))
    none = planned(known, "wheel-3.10-cpu", "v1.0.0", options=Options(label="none"))
    assert (git.wheel.version, none.wheel.version) == ("1.0.0+git1111111", "1.0.0")
    with refused("unknown-commit"):
        planned(known, "wheel-3.10-cpu", "v2.0.0", options=Options(label="git"))


def test_a_host_of_unknown_glibc_promises_no_manylinux(known: Facts) -> None:
    made = planned(known, "wheel-3.10-cpu", "v1.0.0", change_host(LINUX, platform={"glibc": None}))
    assert made.wheel.platform_tag == "linux_x86_64"


@pytest.mark.parametrize(
    ("asked", "tag", "computed"),
    [
        ("auto", "manylinux_2_36_x86_64", True),
        ("linux", "linux_x86_64", False),
        ("manylinux_2_28", "manylinux_2_28_x86_64", False),
        ("manylinux_2_28_x86_64", "manylinux_2_28_x86_64", False),
        ("manylinux2014", "manylinux2014_x86_64", False),
        ("manylinux1_x86_64", "manylinux1_x86_64", False),
        ("manylinux_2_36", "manylinux_2_36_x86_64", False),
        ("linux_x86_64", "linux_x86_64", False),
    ],
)
def test_the_platform_is_computed_or_the_one_asked_for(
    known: Facts, asked: str, tag: str, computed: bool
) -> None:
    made = planned(known, "wheel-3.10-cpu", "v1.0.0", options=Options(platform=asked))
    assert (made.wheel.platform_tag, made.wheel.tag_is_upper_bound) == (tag, computed)
    assert made.wheel.file_name == f"base-1.0.0+cpu-cp310-cp310-{tag}.whl"


@pytest.mark.parametrize(
    ("asked", "host", "code"),
    [
        ("manylinux_2_28_aarch64", LINUX, "platform-of-another-arch"),
        ("linux_aarch64", LINUX, "platform-of-another-arch"),
        ("musllinux_1_2", LINUX, "platform-of-another-libc"),
        ("manylinux_2_37", LINUX, "platform-too-new"),
        ("manylinux_99_0", LINUX, "platform-too-new"),
        ("manylinux_2_4", LINUX, "platform-too-old"),
        ("manylinux_0_0", LINUX, "platform-too-old"),
        (
            "manylinux2014",
            change_host(LINUX, platform={"glibc": None}, complete=True),
            "platform-of-another-libc",
        ),
        (
            "linux",
            Host("arm64", "macos", HostResources(cores=8, memory=GIB)),
            "platform-of-another-system",
        ),
    ],
)
def test_a_platform_that_cannot_be_is_refused(
    known: Facts, asked: str, host: Host, code: str
) -> None:
    with refused(code):
        planned(known, "wheel-3.10-cpu", "v1.0.0", host, Options(platform=asked))


def test_each_machine_has_its_oldest_tag_and_its_own_c_library(known: Facts) -> None:
    """Of the system in a container for another machine nothing is known: only its wheels' tags are."""
    name = "wheel-3.10-cpu-aarch64"
    for old in ("manylinux1", "manylinux_2_12"):
        with refused("platform-too-old") as caught:
            planned(known, name, "v1.0.0", options=Options(platform=old))
        assert str(caught.value).endswith("manylinux_2_17")
    newer = planned(known, name, "v1.0.0", options=Options(platform="manylinux_2_39"))
    assert newer.wheel.platform_tag == "manylinux_2_39_aarch64"


def test_requirements_of_all_rules_are_joined(known: Facts) -> None:
    assert planned(known, "wheel-3.10-cpu", "v1.0.0").requirements == ("wheel", "numpy<2")
    assert planned(known, "wheel-3.10-cpu", "v2.0.0").requirements == ("wheel", "numpy")


def test_what_serves_every_python_is_the_kits(known: Facts) -> None:
    base = replace(known.packages["base"], kit=("Wheel", "cmake"))
    facts = replace(known, packages={**known.packages, "base": base})
    made = planned(facts, "wheel-3.10-cpu", "v2.0.0")
    assert (made.tree.kit, made.requirements) == (("wheel",), ("numpy",)), (
        "cmake is required by no rule"
    )
    assert made.variables["PATH"] == "${kit}/bin:${venv}/bin:${PATH}"
    assert "--skip-dependency-check" in made.commands[0].argv, (
        "`build` would not find it in the environment"
    )
    without = planned(known, "wheel-3.10-cpu", "v2.0.0")
    assert without.variables["PATH"] == "${venv}/bin:${PATH}"
    assert "--skip-dependency-check" not in without.commands[0].argv


@pytest.mark.parametrize(("python", "family"), [("3.10", "wheel-cpu"), ("3.13t", "wheel-cpu")])
def test_a_family_has_the_identifiers_words_but_the_python(
    known: Facts, python: str, family: str
) -> None:
    build = replace(planned(known, "wheel-3.10-cpu", "v2.0.0").build, python=python)
    assert build.family("x86_64") == family
    assert build.family("aarch64") == f"{family}-x86_64"


def test_the_old_spelling_follows_from_the_release(known: Facts) -> None:
    user = Options(settings={"USE_FAST": "0"})
    old = planned(known, "wheel-3.10-cpu", "v1.0.0", options=user).variables
    assert (old["NO_CUDA"], old["NO_FAST"]) == ("1", "1")
    new = planned(known, "wheel-3.10-cpu", "v2.0.0", options=user).variables
    assert "NO_CUDA" not in new
    assert new["USE_FAST"] == "0"


def test_the_user_has_the_last_word(known: Facts) -> None:
    rule = replace(known.packages["base"].rules[0], set={"USE_FAST": "0"})
    base = replace(known.packages["base"], rules=(rule,))
    facts = replace(known, packages={**known.packages, "base": base})
    for settings, value in ((), "0"), ((("USE_FAST", "1"),), "1"):
        made = planned(facts, "wheel-3.10-cpu", "v2.0.0", options=Options(settings=dict(settings)))
        assert made.variables["USE_FAST"] == value


@pytest.mark.parametrize(
    ("host", "options", "jobs"),
    [
        (LINUX, Options(), 8),
        (change_host(LINUX, resources={"memory": 7 * GIB}), Options(), 3),
        (change_host(LINUX, resources={"memory": 1 * GIB}), Options(), 1),
        (LINUX, Options(memory=4 * GIB), 2),
        (change_host(LINUX, resources={"memory": 7 * GIB}), Options(memory=99 * GIB), 3),
        (LINUX, Options(jobs=5), 5),
    ],
)
def test_jobs_are_bounded_by_cores_and_by_memory(
    known: Facts, host: Host, options: Options, jobs: int
) -> None:
    made = planned(known, "wheel-3.10-cpu", "v1.0.0", host, options)
    assert (made.jobs, made.variables["MAX_JOBS"]) == (jobs, str(jobs))


def test_capabilities_are_those_of_the_nearest_official_build(known: Facts) -> None:
    assert (
        planned(known, "wheel-3.10-cu102", "v1.0.0").variables["TORCH_CUDA_ARCH_LIST"] == "3.7;7.0"
    )
    assert (
        planned(known, "wheel-3.10-cu118", "v1.0.0").variables["TORCH_CUDA_ARCH_LIST"] == "3.7;7.0"
    )
    asked = planned(known, "wheel-3.10-cu118", "v1.0.0", options=Options(arch_list="8.6"))
    assert asked.variables["TORCH_CUDA_ARCH_LIST"] == "8.6"
    assert "TORCH_CUDA_ARCH_LIST" not in planned(known, "wheel-3.10-cpu", "v1.0.0").variables


def test_capabilities_that_the_toolkit_dropped_are_left_out(shipped: Facts) -> None:
    release = find_release(shipped, "torch", "v2.0.1")
    lists = {}
    for variant in ("cu118", "cu121"):
        cell = cell_lookup.find_cell(shipped, f"wheel-3.10-{variant}", "x86_64", release)
        lists[variant] = build_plan.compute_plan(shipped, cell, LINUX, Options()).variables[
            "TORCH_CUDA_ARCH_LIST"
        ]
    assert lists["cu118"] == "3.7;5.0;6.0;7.0;7.5;8.0;8.6;9.0"
    assert lists["cu121"] == "5.0;6.0;7.0;7.5;8.0;8.6;9.0", "nvcc 12 refuses 3.7"


def test_the_macos_tag_follows_the_deployment_target(shipped: Facts) -> None:
    mac = Host("arm64", "macos", HostResources(cores=8, memory=32 * GIB))
    cell = cell_lookup.find_cell(
        shipped, "wheel-3.12-cpu", "arm64", find_release(shipped, "torch", "v2.15.0")
    )
    made = build_plan.compute_plan(shipped, cell, mac, Options())
    assert made.wheel.file_name == "torch-2.15.0-cp312-cp312-macosx_14_0_arm64.whl"
    tags = set(mac_platforms((26, 1), "arm64"))
    for target, tag in (("15.0", "macosx_15_0_arm64"), ("26.0", "macosx_26_0_arm64")):
        options = Options(settings={"MACOSX_DEPLOYMENT_TARGET": target})
        assert build_plan.compute_plan(shipped, cell, mac, options).wheel.platform_tag == tag
        assert tag in tags
    for none in ("14.5", "14", "15.0.1", ""):
        assert f"macosx_{none.replace('.', '_')}_arm64" not in tags
        with refused("invalid-platform"):
            build_plan.compute_plan(
                shipped, cell, mac, Options(settings={"MACOSX_DEPLOYMENT_TARGET": none})
            )


def test_one_wheel_for_every_python_is_named_so(shipped: Facts) -> None:
    release = find_release(shipped, "torch", "v2.15.0")
    cell = cell_lookup.find_cell(shipped, "vision-3.12-cpu", "x86_64", release)
    made = build_plan.compute_plan(shipped, cell, LINUX, Options())
    assert made.wheel.file_name == "torchvision-0.29.2+cpu-py3-none-manylinux_2_36_x86_64.whl"


def test_a_dependent_package_requires_exactly_the_base_it_is_built_against(known: Facts) -> None:
    made = planned(known, "vision-3.10-cpu", "v1.0.0")
    assert made.wheel.torch == "base==1.0.0+cpu"
    assert made.variables["BASE_PIN"] == "1.0.0+cpu"
    assert made.requirements == ("base==1.0.0+cpu",)
    released = planned(known, "vision-3.10-cpu", "v1.0.0", options=Options(torch="PyPI"))
    assert released.requirements == ("base===1.0.0",)  # not one of ours, with a label
    wheel = "/wheels/base-1.0.0+mine-cp310-cp310-linux_x86_64.whl"
    own = planned(known, "vision-3.10-cpu", "v1.0.0", options=Options(torch=wheel))
    assert (own.wheel.torch, own.requirements) == ("base==1.0.0+mine", (wheel,))


def test_the_source_decides_the_way_in(known: Facts) -> None:
    release = find_release(known, "base", "v1.0.0")
    cell = cell_lookup.find_cell(known, "wheel-3.10-cpu", "x86_64", release)
    tree = Source("base", "1.0.0", "v1.0.0", "git", "somewhere", "1" * 40, path=None, verified=True)  # type: ignore[arg-type]
    assert "bdist_wheel" in build_plan.compute_plan(known, cell, LINUX, Options()).commands[0].argv
    for backend, word in {
        None: "bdist_wheel",
        "setuptools.build_meta:__legacy__": "bdist_wheel",
        "scikit_build_core.build": "--no-isolation",
    }.items():
        made = build_plan.compute_plan(
            known, cell, LINUX, Options(), replace(tree, build_backend=backend)
        )
        assert word in made.commands[0].argv, backend


def test_facts_say_the_way_in_before_there_is_a_source(known: Facts) -> None:
    assert "--no-isolation" in planned(known, "wheel-3.10-cpu", "v2.0.0").commands[0].argv


def ruled(configs: Path, rules: str) -> Facts:
    file = configs / "packages" / "base.toml"
    file.write_text(file.read_text(encoding="utf-8") + dedent(rules), encoding="utf-8")
    return facts_reader.read_facts(configs)


FLAGS = """
    [[rule]]
    reason = "every build"
    set = { CXXFLAGS = "-g" }

    [[rule]]
    reason = "gcc 12 warns of more"
    when = { gcc = ">=12" }
    append = { CXXFLAGS = "-Wno-error=a" }

    [[rule]]
    reason = "gcc 13 includes less"
    when = { gcc = ">=13" }
    append = { CXXFLAGS = "-include cstdint" }
"""


@pytest.mark.parametrize("line", ["", "two words", "numpy<"])
def test_a_line_that_is_no_requirement_is_named_with_its_rule(configs: Path, line: str) -> None:
    known = ruled(
        configs,
        f"""
        [[rule]]
        when = {{ variant = "cpu" }}
        reason = "it is needed"
        requires = ["{line}"]
    """,
    )
    with refused("facts-invalid") as caught:
        planned(known, "wheel-3.10-cpu", "v1.0.0")
    assert f"'{line}' is not a requirement" in str(caught.value)
    assert str(caught.value).startswith("base.toml: rule ")


def test_flags_of_all_rules_are_joined_and_the_users_come_last(configs: Path) -> None:
    known = ruled(configs, FLAGS)

    def flags(version: str, **user: str) -> str:
        machine = change_host(LINUX, compilers={"default": Compiler("gcc", version)})
        return planned(
            known, "wheel-3.10-cpu", "v1.0.0", machine, Options(settings=user)
        ).variables["CXXFLAGS"]

    assert (flags("11.4.0"), flags("12.2.0")) == ("-g", "-g -Wno-error=a")
    assert flags("14.2.0") == "-g -Wno-error=a -include cstdint"
    assert flags("14.2.0", CXXFLAGS="-O1") == "-g -Wno-error=a -include cstdint -O1"
    assert flags("11.4.0", CXXFLAGS="-O1") == "-O1", "where no rule appends, a setting replaces"


def test_a_plan_says_why_it_adds_flags(configs: Path) -> None:
    known = ruled(configs, FLAGS)
    new, old = (
        change_host(LINUX, compilers={"default": Compiler("gcc", version)})
        for version in ("12.2.0", "11.4.0")
    )
    assert planned(known, "wheel-3.10-cpu", "v1.0.0", new).reasons == ("gcc 12 warns of more",)
    assert planned(known, "wheel-3.10-cpu", "v1.0.0", old).reasons == ()


def test_without_a_source_a_rule_for_checkouts_holds(configs: Path) -> None:
    rule = """
        [[rule]]
        reason = "submodules"
        when = { provider = ["git", "path"] }
        set = { A = "1" }
    """
    assert planned(ruled(configs, rule), "wheel-3.10-cpu", "v1.0.0").variables["A"] == "1"


# What the rules for new compilers promise, tried on the compiler of this machine: flags mean the same to all.
POOLING = "-Wno-error=dangling-reference -Wno-error=tautological-compare"
QUIET = "-Wno-error=maybe-uninitialized -Wno-error=uninitialized"
MISSING = "std::array<std::uint8_t, 2> f() { if (false) throw std::logic_error({}); return {}; }\n"
UNDEFINED = "void use(const int *);\nint f() { int x; use(&x); int y; return y; }\n"
KERNEL = """
    struct request { int cmd; unsigned masks[]; };
    static int getInterfaceSpeedGLinkSettings(int) {
      struct {
        struct request req;
        unsigned room[381];
      } ecmd;
      return sizeof(ecmd);
    }
    struct { int left; } alone;
"""


def shipped_plan(known: Facts, tag: str, gcc: str, name: str = "wheel-3.10-cpu") -> Plan:
    release = find_release(known, "torch", tag)
    machine = change_host(LINUX, compilers={"default": Compiler("gcc", gcc)})
    return build_plan.compute_plan(
        known, cell_lookup.find_cell(known, name, "x86_64", release), machine, Options()
    )


def complaint(folder: Path, text: str, *flags: str) -> str:
    """Compile a text with the machine's g++ and return what it said, "" where it had no error."""
    source = folder / "unit.cpp"
    source.write_text(text, encoding="utf-8")
    argv = ("g++", *flags, "-O2", "-c", source.name, "-o", "unit.o")
    done = subprocess.run(argv, cwd=folder, capture_output=True, text=True, check=False)
    return done.stderr if done.returncode else ""


needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++")


@needs_compiler
def test_headers_that_new_compilers_leave_out_are_added(shipped: Facts, tmp_path: Path) -> None:
    flags = shipped_plan(shipped, "v1.8.1", "14.2.0", "wheel-3.8-cpu").variables["CXXFLAGS"].split()
    assert "cstdint" in flags
    assert "does not name a" in complaint(tmp_path, MISSING)
    assert complaint(tmp_path, MISSING, *flags) == ""


@needs_compiler
def test_a_warning_stays_one_though_a_target_says_werror_later(
    shipped: Facts, tmp_path: Path
) -> None:
    flags = shipped_plan(shipped, "v2.4.0", "12.2.0").variables["CXXFLAGS"].split()
    refused = complaint(tmp_path, UNDEFINED, "-Wall", "-Werror")
    assert "Werror=maybe-uninitialized" in refused
    assert "Werror=uninitialized" in refused
    assert complaint(tmp_path, UNDEFINED, *flags, "-Wall", "-Werror") == ""


@needs_compiler
def test_the_kernels_open_array_is_kept_at_the_end(shipped: Facts, tmp_path: Path) -> None:
    made = shipped_plan(shipped, "v1.12.1", "12.2.0")
    edit = next(command.argv for command in made.tree.preparation if "gloo" in command.argv[-1])
    file = tmp_path / edit[-1]
    file.parent.mkdir(parents=True)
    file.write_text(dedent(KERNEL), encoding="utf-8")
    assert "flexible array member" in complaint(tmp_path, file.read_text(encoding="utf-8"))
    subprocess.run(edit, cwd=tmp_path, check=True)
    mended = file.read_text(encoding="utf-8")
    assert complaint(tmp_path, mended) == ""
    assert (mended.count("union {"), "struct { int left" in mended) == (1, True)


# What the edits of PeachPy find in its files, around which the names of constants are given out.
OBJECT_FILE = """
def name_source(source_symbol, source):
    if source:
        source_symbol.name = source
"""
CONSTANT_NAMES = """
class Names:
    def __init__(self):
        self.prenames = {}
    def add(self, scope_name, scope):
        self.prenames.setdefault(scope_name.prename, set())
        self.prenames[scope_name.prename].add(scope)
"""


def test_peachpy_names_no_folder_and_keeps_the_order_of_constants(
    shipped: Facts, tmp_path: Path
) -> None:
    (tmp_path / "third_party").mkdir()
    made = shipped_plan(shipped, "v1.13.1", "12.2.0").tree.preparation
    edits = [
        [fill_placeholders(word, {}) for word in edit.argv] for edit in made if "find" in edit.argv
    ]
    for edit in edits:
        subprocess.run(edit, cwd=tmp_path, check=True)  # a source without PeachPy is fine
    package = tmp_path / "third_party/python-peachpy/peachpy"
    (package / "formats/elf").mkdir(parents=True)
    (package / "formats/elf/image.py").write_text(OBJECT_FILE, encoding="utf-8")
    (package / "name.py").write_text(CONSTANT_NAMES, encoding="utf-8")
    for edit in edits:
        subprocess.run(edit, cwd=tmp_path, check=True)
    image, name = (
        runpy.run_path(str(package / file)) for file in ("formats/elf/image.py", "name.py")
    )
    symbol, names, constants = SimpleNamespace(), name["Names"](), [object() for _ in range(40)]
    image["name_source"](symbol, "/home/me/third_party/NNPACK/src/relu.py")
    for constant in constants:
        names.add(SimpleNamespace(prename="mask"), constant)
    assert (symbol.name, list(names.prenames["mask"])) == ("relu.py", constants)


@pytest.mark.parametrize(
    ("tag", "gcc", "name", "flags"),
    [
        ("v1.4.0", "9.4.0", "wheel-3.8-cpu", None),
        ("v1.4.0", "11.4.0", "wheel-3.8-cpu", "-include limits -include stdexcept"),
        ("v1.10.2", "12.2.0", "wheel-3.9-cpu", "-include array"),
        ("v1.8.1", "11.4.0", "wheel-3.8-cu111", None),
        ("v2.4.0", "11.4.0", "wheel-3.10-cpu", None),
        ("v2.4.0", "12.2.0", "wheel-3.10-cu124", QUIET),
        ("v2.4.0", "13.2.0", "wheel-3.10-cu124", f"{POOLING} {QUIET}"),
        (
            "v2.6.0",
            "15.2.0",
            "wheel-3.10-cpu",
            f"-include cstdint {QUIET}",
        ),
        ("v2.9.1", "15.2.0", "wheel-3.10-cpu", None),
    ],
)
def test_flags_by_compiler(
    shipped: Facts, tag: str, gcc: str, name: str, flags: str | None
) -> None:
    assert shipped_plan(shipped, tag, gcc, name).variables.get("CXXFLAGS") == flags


PYPI = Options(torch="PyPI")


def cell(facts: Facts, identifier: str, arch: str = "x86_64") -> Cell:
    return cell_lookup.find_cell(facts, identifier, arch, find_release(facts, "torch", "v1.13.1"))


def test_the_wheel_on_pypi_has_no_label(shipped: Facts) -> None:
    assert base_package.base_version(shipped, cell(shipped, "vision-3.10-cu117"), PYPI) == "1.13.1"
    assert base_package.base_version(shipped, cell(shipped, "vision-3.10-cpu"), PYPI) == "1.13.1"
    assert (
        base_package.base_version(shipped, cell(shipped, "vision-3.10-cu117"), Options())
        == "1.13.1+cu117"
    )
    assert base_package.base_version(shipped, cell(shipped, "wheel-3.10-cu117"), Options()) is None


def test_another_cuda_than_that_of_the_wheel_on_pypi_is_refused(shipped: Facts) -> None:
    with refused("torch-cuda-mismatch") as told:
        base_package.base_version(shipped, cell(shipped, "vision-3.10-cu118"), PYPI)
    assert str(told.value) == (
        "--torch PyPI: torch 1.13.1 there is built for cu117, and not for cu118: build for that, or omit --torch"
    )


def test_of_other_machines_the_wheel_on_pypi_is_not_known(shipped: Facts) -> None:
    assert (
        base_package.base_version(shipped, cell(shipped, "vision-3.10-cu118", "aarch64"), PYPI)
        == "1.13.1"
    )


def test_pip_gets_the_very_wheel() -> None:
    assert (
        base_package.base_pip_requirement("torch", "1.13.1", PYPI) == "torch===1.13.1"
    )  # "==" means any label, too
    assert (
        base_package.base_pip_requirement("torch", "1.13.1+cu117", Options())
        == "torch==1.13.1+cu117"
    )
    assert (
        base_package.base_pip_requirement("torch", "1.13.1+x", Options(torch="/a/b.whl"))
        == "/a/b.whl"
    )


@pytest.mark.parametrize(
    ("python", "tags"),
    [("3.7", "cp37-cp37m"), ("3.10", "cp310-cp310"), ("3.13t", "cp313-cp313t")],
)
def test_python_tags(python: str, tags: str) -> None:
    assert wheel_name.python_tag(python) == tags


def test_a_wheel_is_called_as_its_package_is_normalised(known: Facts) -> None:
    package = replace(known.packages["addon"], name="torch-Scatter.extra")
    release = known.releases["addon"][0]
    build = Build("addon", "vision", "3.10", "cu118", "x86_64", "11.8")
    named = wheel_name.wheel_file_name(package, release, build, "2.1.2+cu118", "linux_x86_64")
    assert named == "torch_scatter_extra-2.1.2+cu118-cp310-cp310-linux_x86_64.whl"


HOST = Host(
    "x86_64", "linux", HostResources(cores=4, memory=2**35), platform=HostPlatform(glibc="2.36")
)
SOURCE = Source("base", "1.0.0", "v1.0.0", "git", "here", "1" * 40, Path("source"), verified=True)
GROUND = {"g++": "12.2"}


@pytest.fixture
def base(known: Facts) -> Plan:
    """Return a plan."""
    return plan_of_base(known, Options())


def plan_of_base(known: Facts, options: Options, name: str = "wheel-3.10-cpu") -> Plan:
    cell = cell_lookup.find_cell(known, name, "x86_64", known.releases["base"][0])
    return build_plan.compute_plan(known, cell, HOST, options)


def test_the_tree_follows_everything_but_the_interpreter(known: Facts, base: Plan) -> None:
    def key(computed: Plan, source: Source = SOURCE, ground: dict[str, str] = GROUND) -> str:
        return tree_key(tree_inputs(computed, source, known.patches, ground))

    first = key(base)
    for slower in (Options(jobs=1), Options(memory=2**30)):
        fewer = plan_of_base(known, slower)
        assert fewer.jobs < base.jobs
        assert key(fewer) == first, "jobs change how fast, not what"
    assert key(plan_of_base(known, Options(), "wheel-3.9-cpu")) == first
    assert key(replace(base, requirements=("numpy<3",))) == first
    changed = [
        key(base, ground={"g++": "13.1"}),
        key(base, replace(SOURCE, commit="2" * 40)),
        key(base, replace(SOURCE, submodules={"a": "3"})),
        key(plan_of_base(known, Options(settings={"USE_X": "1"}))),
        key(replace(base, tree=replace(base.tree, kit=("cmake<4",)))),
        key(replace(base, tree=replace(base.tree, preparation=())))
        if base.tree.preparation
        else "none",
    ]
    assert len({first, *changed}) == 1 + len(changed)


def test_what_is_compiled_follows_the_interpreter_and_its_requirements(
    known: Facts, base: Plan
) -> None:
    def key(computed: Plan, tree: str = "tree", python: str = "3.10.13") -> str:
        return compile_key(
            tree, environment_key(computed, {"python": python, "base": ""}), computed
        )

    first = key(base)
    changed = [
        key(base, tree="other"),
        key(base, python="3.10.14"),
        key(replace(base, requirements=("numpy<3",))),
        key(replace(base, commands=())),
        key(plan_of_base(known, Options(), "wheel-3.9-cpu")),
    ]
    assert len({first, *changed}) == 1 + len(changed)


def test_the_tree_follows_the_bytes_of_a_patch(known: Facts, base: Plan) -> None:
    patched = replace(base, tree=replace(base.tree, patches=("base/a.patch",)))
    patch = known.patches / "base" / "a.patch"
    patch.parent.mkdir(parents=True)
    keys = set()
    contents = (
        b"one",
        b"two",
        b"one\n",
        b"one\r\n",
        b"caf\xe9",
        b"caf\xe8",
        "caf\u00e9".encode(),
        b"\xff\xfe\0",
    )
    for content in contents:
        patch.write_bytes(content)
        keys.add(tree_key(tree_inputs(patched, SOURCE, known.patches, GROUND)))
    assert len(keys) == len(contents)


def test_what_changed_since_another_tree_is_said_without_digests(base: Plan, known: Facts) -> None:
    before = tree_inputs(
        base, SOURCE, known.patches, {"compiler": "gcc 12.2.0", "C++: cc1plus": "a" * 64, "old": ""}
    )
    switched = replace(base, variables={**base.variables, "USE_MPI": "1"})
    after = tree_inputs(
        switched, SOURCE, known.patches, {"compiler": "gcc 13.1.0", "C++: cc1plus": "b" * 64}
    )
    assert describe_changed_inputs(before, after) == [
        "machine's C++: cc1plus",
        "machine's compiler (gcc 13.1.0, was gcc 12.2.0)",
        "machine's old (gone)",
        "setting USE_MPI (new)",
    ]
    assert describe_changed_inputs(after, after) == []


def test_conda_is_taken_only_when_an_environment_is_active() -> None:
    there = {"conda", "apt-get"}.__contains__
    assert system_packages.find_manager(there, None, conda=False) == "apt"
    assert system_packages.find_manager(there, None, conda=True) == "conda"


def test_the_manager_of_the_distribution_goes_before_others() -> None:
    fedora, rocky = (
        LinuxDistribution("fedora", "42"),
        LinuxDistribution("nobara", "41", ("rhel", "fedora")),
    )
    assert (
        system_packages.find_manager({"apt-get", "dnf"}.__contains__, fedora, conda=False) == "dnf"
    )
    assert (
        system_packages.find_manager({"apt-get", "microdnf"}.__contains__, rocky, conda=False)
        == "microdnf"
    )
    with refused("no-package-manager") as caught:
        system_packages.find_manager({"apt-get"}.__contains__, fedora, conda=False)
    assert "fedora 42 usually has the package manager dnf" in str(caught.value)


def test_no_package_manager_is_told() -> None:
    with refused("no-package-manager"):
        system_packages.find_manager(lambda _: False, None, conda=False)


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


def test_bundled_libraries_are_needed_unless_the_systems_are_linked(shipped: Facts) -> None:
    release = find_release(shipped, "torch", "v2.6.0")
    cell = cell_lookup.find_cell(shipped, "wheel-3.13-cpu", "x86_64", release)
    fetched = Source(
        "torch", "2.6.0", "v2.6.0", "path", "folder", None, Path("/src"), verified=False
    )
    assert (
        "third_party/gloo"
        in build_plan.compute_plan(shipped, cell, HOST, Options(), fetched).tree.required_folders
    )
    of_debian = build_plan.compute_plan(
        shipped, cell, HOST, Options(), replace(fetched, provider="debian")
    )
    assert (
        of_debian.tree.required_folders,
        "torch/system-xnnpack.patch" in of_debian.tree.patches,
    ) == ((), True)
    prepared = {one.argv[-1]: one.argv for one in of_debian.tree.preparation}
    suites = shipped.packages["torch"].debian_fill.values()
    assert all("third_party/pocketfft" in one for one in suites), (
        "what is filled there, the header is copied out of"
    )
    assert prepared["third_party/pocketfft/"][1].startswith("third_party/pocketfft/include/")


def test_every_manager_knows_a_compiler(shipped: Facts) -> None:
    release = find_release(shipped, "torch", "v2.4.0")
    cells = matrix.buildable_cells(shipped, release, "x86_64")
    assert "gcc-c++" in system_packages.required_packages(shipped, cells, "dnf", None)
    assert "cxx-compiler" in system_packages.required_packages(shipped, cells, "conda", None)


def test_a_wheel_for_the_stable_abi_serves_many_torch_and_pythons(shipped: Facts) -> None:
    assert [release.torch for release in shipped.releases["xformers"]] == ["2.10.0", "2.11.0"]
    for release in shipped.releases["xformers"]:
        cells = matrix.possible_cells(shipped, release, "x86_64")
        cell = next(one for one in cells if one.build.variant == "cu130")
        plan = build_plan.compute_plan(shipped, cell, LINUX, Options())
        assert plan.wheel.file_name.startswith("xformers-0.0.35+cu130-py39-none-")
        assert (plan.wheel.torch, plan.wheel.torch_requirement) == (
            f"torch=={release.torch}+cu130",
            "torch>=2.10",
        )


@pytest.mark.parametrize(
    ("variables", "clones"),
    [
        ({"USE_CUDA": "0", "USE_NCCL": "0"}, False),
        ({"USE_CUDA": "1", "USE_SYSTEM_NCCL": "1"}, False),
        ({"USE_CUDA": "1", "USE_NCCL": "0"}, False),
        ({"USE_CUDA": "1"}, True),
        ({}, True),
    ],
)
def test_2_7_clones_nccl_only_for_builds_that_use_its_own(
    shipped: Facts, variables: dict[str, str], clones: bool, tmp_path: Path
) -> None:
    release = find_release(shipped, "torch", "v2.7.1")
    found = cell_lookup.find_cell(shipped, "wheel-3.12-cpu", "x86_64", release)
    commands = [
        one.argv
        for one in build_plan.compute_plan(shipped, found, LINUX, Options()).tree.preparation
    ]
    tools = tmp_path / "tools/build_pytorch_libs.py"
    tools.parent.mkdir()
    tools.write_text(
        "def build_pytorch():\n    checkout_nccl()\n    build_test = 1\n", encoding="utf-8"
    )
    for argv in (one for one in commands if one[-1] == "tools/build_pytorch_libs.py"):
        subprocess.run(argv, cwd=tmp_path, check=True)
    said: list[str] = []
    names = runpy.run_path(str(tools))
    names["build_pytorch"].__globals__.update(
        checkout_nccl=lambda: said.append("cloned"),
        check_negative_env_flag=lambda name, default="": (
            variables.get(name, default) in {"0", "OFF"}
        ),
    )
    names["build_pytorch"]()
    assert bool(said) == clones


def test_apple_silicon_runs_no_macos_before_11(shipped: Facts) -> None:
    mac = Host("arm64", "macos", HostResources(cores=8, memory=32 * GIB))
    cell = cell_lookup.find_cell(
        shipped, "wheel-3.12-cpu", "arm64", find_release(shipped, "torch", "v2.4.1")
    )
    assert "macosx_10_15_arm64" not in set(mac_platforms((26, 1), "arm64"))
    with refused("invalid-platform"):
        build_plan.compute_plan(
            shipped, cell, mac, Options(settings={"MACOSX_DEPLOYMENT_TARGET": "10.15"})
        )


@pytest.mark.parametrize("off", ["0", "OFF", "no", "False"])
def test_a_switch_is_off_however_that_is_spelled(shipped: Facts, off: str) -> None:
    release = find_release(shipped, "torch", "v2.6.0")
    found = cell_lookup.find_cell(shipped, "wheel-3.12-cu124", "x86_64", release)
    settings = {"USE_CUDNN": off, "USE_NCCL": off, "USE_DISTRIBUTED": off}
    made = build_plan.compute_plan(shipped, found, LINUX, Options(settings=settings))
    assert {"cuDNN", "NCCL", "torch.distributed with gloo and TensorPipe"} <= {
        one.part for one in made.official.shortfalls
    }
    old = cell_lookup.find_cell(
        shipped, "wheel-3.7-cpu", "x86_64", find_release(shipped, "torch", "v1.0.1")
    )
    assert (
        build_plan.compute_plan(
            shipped, old, LINUX, Options(settings={"USE_MKLDNN": off})
        ).variables["NO_MKLDNN"]
        == "1"
    )


def test_a_release_without_what_a_rule_installs_is_a_mistake_in_the_facts(shipped: Facts) -> None:
    release = replace(find_release(shipped, "torch", "v2.6.0"), partners={})
    known = replace(shipped, releases={**shipped.releases, "torch": (release,)})
    found = cell_lookup.find_cell(known, "wheel-3.12-cu124", "x86_64", release)
    with refused("facts-invalid"):
        build_plan.compute_plan(known, found, LINUX, Options())


@pytest.mark.parametrize(
    ("name", "tag"), [("vision-3.12-cu124", "v2.5.1"), ("vision-3.12-cu126", "v2.11.0")]
)
def test_the_wheel_on_pypi_for_arm_is_of_one_cuda_or_none(
    shipped: Facts, name: str, tag: str
) -> None:
    found = cell_lookup.find_cell(shipped, name, "aarch64", find_release(shipped, "torch", tag))
    with refused("torch-cuda-mismatch"):
        base_package.base_version(shipped, found, PYPI)
    same = cell_lookup.find_cell(
        shipped, "vision-3.12-cu130", "aarch64", find_release(shipped, "torch", "v2.11.0")
    )
    assert base_package.base_version(shipped, same, PYPI) == "2.11.0"
