"""What rules do to sources and flags, tried: compilers, Python and edits of this machine run them."""

import runpy
import shutil
import subprocess
from pathlib import Path
from string import Template
from textwrap import dedent
from types import SimpleNamespace

import pytest
from press_support import compiled_wheels

from tests.support.hosts import change_host
from tests.support.plans import LINUX, plan_torch
from torchmill.cell.environment import fill_placeholders
from torchmill.config.facts import Facts
from torchmill.host.host import Compiler
from torchmill.plan.plan import Plan

POOLING = "-Wno-error=dangling-reference -Wno-error=tautological-compare"
QUIET = "-Wno-error=maybe-uninitialized -Wno-error=uninitialized"
EXTENSIONS = (
    "vision-3.11-cpu",
    "audio-3.11-cpu",
    "scatter-3.11-cpu",
    "cluster-3.11-cpu",
    "sparse-3.11-cpu",
    "flash-3.11-cu126",
    "conv1d-3.11-cu126",
    "mamba-3.11-cu126",
    "xformers-3.11-cu126",
)

needs_gcc = pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++")


def plan_with_gcc(shipped: Facts, tag: str, gcc: str, identifier: str = "wheel-3.10-cpu") -> Plan:
    host = change_host(LINUX, compilers={"default": Compiler("gcc", gcc)})
    return plan_torch(shipped, identifier, tag, host)


@pytest.mark.parametrize(
    ("tag", "gcc", "identifier", "flags"),
    [
        ("v1.4.0", "9.4.0", "wheel-3.8-cpu", None),
        ("v1.4.0", "11.4.0", "wheel-3.8-cpu", "-include limits -include stdexcept"),
        ("v1.10.2", "12.2.0", "wheel-3.9-cpu", "-include array"),
        ("v1.8.1", "11.4.0", "wheel-3.8-cu111", None),
        ("v2.4.0", "11.4.0", "wheel-3.10-cpu", None),
        ("v2.4.0", "12.2.0", "wheel-3.10-cu124", QUIET),
        ("v2.4.0", "13.2.0", "wheel-3.10-cu124", f"{POOLING} {QUIET}"),
        ("v2.6.0", "15.2.0", "wheel-3.10-cpu", f"-include cstdint {QUIET}"),
        ("v2.9.1", "15.2.0", "wheel-3.10-cpu", None),
    ],
)
def test_flags_by_compiler(
    shipped: Facts, tag: str, gcc: str, identifier: str, flags: str | None
) -> None:
    assert plan_with_gcc(shipped, tag, gcc, identifier).variables.get("CXXFLAGS") == flags


def compiler_errors(folder: Path, text: str, *flags: str) -> str:
    """Compile a text with the machine's g++ and return its errors; "" if it has none.

    Flags that a rule gives for a newer gcc mean the same to every one.
    """
    source = folder / "unit.cpp"
    source.write_text(text, encoding="utf-8")
    argv = ("g++", *flags, "-O2", "-c", source.name, "-o", "unit.o")
    done = subprocess.run(argv, cwd=folder, capture_output=True, text=True, check=False)
    return done.stderr if done.returncode else ""


@needs_gcc
def test_headers_that_new_compilers_leave_out_are_added(shipped: Facts, tmp_path: Path) -> None:
    text = dedent("""
        std::array<std::uint8_t, 2> f() {
          if (false) throw std::logic_error({});
          return {};
        }
    """)
    plan = plan_with_gcc(shipped, "v1.8.1", "14.2.0", "wheel-3.8-cpu")
    flags = plan.variables["CXXFLAGS"].split()
    assert "cstdint" in flags
    assert "does not name a" in compiler_errors(tmp_path, text)
    assert compiler_errors(tmp_path, text, *flags) == ""


@needs_gcc
def test_a_warning_stays_one_though_a_target_has_werror_later(
    shipped: Facts, tmp_path: Path
) -> None:
    text = "void use(const int *);\nint f() { int x; use(&x); int y; return y; }\n"
    flags = plan_with_gcc(shipped, "v2.4.0", "12.2.0").variables["CXXFLAGS"].split()
    errors = compiler_errors(tmp_path, text, "-Wall", "-Werror")
    assert "Werror=maybe-uninitialized" in errors
    assert "Werror=uninitialized" in errors
    assert compiler_errors(tmp_path, text, *flags, "-Wall", "-Werror") == ""


@needs_gcc
def test_the_open_array_of_the_kernel_stays_at_the_end(shipped: Facts, tmp_path: Path) -> None:
    text = dedent("""
        struct request { int cmd; unsigned masks[]; };
        static int getInterfaceSpeedGLinkSettings(int) {
          struct {
            struct request req;
            unsigned room[381];
          } ecmd;
          return sizeof(ecmd);
        }
        struct { int left; } alone;
    """)
    commands = plan_with_gcc(shipped, "v1.12.1", "12.2.0").tree.preparation
    edit = next(command.argv for command in commands if "gloo" in command.argv[-1])
    file = tmp_path / edit[-1]
    file.parent.mkdir(parents=True)
    file.write_text(text, encoding="utf-8")
    assert "flexible array member" in compiler_errors(tmp_path, text)
    subprocess.run(edit, cwd=tmp_path, check=True)
    edited = file.read_text(encoding="utf-8")
    assert compiler_errors(tmp_path, edited) == ""
    assert edited.count("union {") == 1
    assert "struct { int left" in edited


@compiled_wheels.needs_compiler
@pytest.mark.parametrize("is_lent", [False, True])
@pytest.mark.parametrize("identifier", EXTENSIONS)
def test_an_extension_names_no_folder_in_its_messages(
    shipped: Facts, identifier: str, tmp_path: Path, *, is_lent: bool
) -> None:
    """Compile as ninja does, by whole paths, and as ccache does, by paths from where it works.

    Torch is in the environment of the build, or in one that the user lends with --torch.
    """
    settings = set()
    for compiler in (Compiler("gcc", "12.2.0"), Compiler("clang", "14.0.0")):
        host = change_host(LINUX, compilers={"default": compiler})
        variables = plan_torch(shipped, identifier, "v2.10.0", host).variables
        settings |= {variables["CFLAGS"], variables["CXXFLAGS"]}
    (template,) = settings
    tree = tmp_path / "tree"
    source = tree / "source"
    packages = (tmp_path / "user" if is_lent else tree / "env") / "lib"
    flags = Template(template).substitute(tree=tree, source=source, torch_packages=packages)
    folder = source / "build/temp.linux"
    folder.mkdir(parents=True)
    packages.mkdir(parents=True)
    (packages / "torch.h").write_text("__FILE__\n")
    (source / "csrc").mkdir()
    (source / "csrc/a.cpp").write_text("#include <torch.h>\n__FILE__\n")
    for source_word, tree_word in ((source, tree), ("../..", "../../..")):
        # ccache leaves the path of a folder outside of all trees as it is.
        include = f"-I{packages}" if is_lent else f"-I{tree_word}/env/lib"
        argv = ["c++", *flags.split(), include, "-E", "-P", f"{source_word}/csrc/a.cpp"]
        done = subprocess.run(argv, cwd=folder, capture_output=True, text=True, check=True)
        header = '"./torch.h"' if is_lent else '"./env/lib/torch.h"'
        assert done.stdout.split() == [header, '"./csrc/a.cpp"']


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
    commands = plan_with_gcc(shipped, "v1.13.1", "12.2.0").tree.preparation
    finding = [command for command in commands if "find" in command.argv]
    edits = [[fill_placeholders(word, {}) for word in command.argv] for command in finding]
    for edit in edits:
        # A source without PeachPy is left as it is.
        subprocess.run(edit, cwd=tmp_path, check=True)
    package = tmp_path / "third_party/python-peachpy/peachpy"
    image = package / "formats/elf/image.py"
    image.parent.mkdir(parents=True)
    image.write_text(OBJECT_FILE, encoding="utf-8")
    (package / "name.py").write_text(CONSTANT_NAMES, encoding="utf-8")
    for edit in edits:
        subprocess.run(edit, cwd=tmp_path, check=True)
    symbol = SimpleNamespace()
    name_source = runpy.run_path(str(image))["name_source"]
    name_source(symbol, "/home/me/third_party/NNPACK/src/relu.py")
    assert symbol.name == "relu.py"
    names = runpy.run_path(str(package / "name.py"))["Names"]()
    constants = [object() for _ in range(40)]
    for constant in constants:
        names.add(SimpleNamespace(prename="mask"), constant)
    assert list(names.prenames["mask"]) == constants


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
    tools = tmp_path / "tools/build_pytorch_libs.py"
    tools.parent.mkdir()
    tools.write_text(
        "def build_pytorch():\n    checkout_nccl()\n    build_test = 1\n", encoding="utf-8"
    )
    for command in plan_torch(shipped, "wheel-3.12-cpu", "v2.7.1").tree.preparation:
        if command.argv[-1] == "tools/build_pytorch_libs.py":
            subprocess.run(command.argv, cwd=tmp_path, check=True)
    calls: list[str] = []

    def check_negative_env_flag(name: str, default: str = "") -> bool:
        return variables.get(name, default) in {"0", "OFF"}

    build_pytorch = runpy.run_path(str(tools))["build_pytorch"]
    build_pytorch.__globals__.update(
        checkout_nccl=lambda: calls.append("clone"),
        check_negative_env_flag=check_negative_env_flag,
    )
    build_pytorch()
    assert bool(calls) == clones
