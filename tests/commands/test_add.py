"""`invoke add`, with source archives that the tests make, and a torch that is none."""

import io
import json
import os
import subprocess
import sys
import tarfile
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.commands import ROOT, InvokeHere
from tests.support.index_server import Index, serving
from tests.support.refusals import without_code
from tests.support.stub_torch import make_stub_torch
from torchmill.cell.dry_run import DryEnvironment
from torchmill.commands.add import command, offer
from torchmill.commands.command import CommandOutput
from torchmill.config.facts import Facts
from torchmill.core.paths import Layout
from torchmill.core.process import CommandError
from torchmill.host.description import load_host
from torchmill.host.host import HostToolkits
from torchmill.plan.build_options import NO_OPTIONS

setuptools = pytest.importorskip("setuptools")
pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="dry runs fork")

SWITCHED = """\
import os, glob
from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CppExtension, CUDAExtension
if os.getenv("SPAM_GPU", "0") == "1":
    extension = CUDAExtension("spam._C", ["spam.cpp", "spam.cu"])
else:
    extension = CppExtension("spam._C", ["spam.cpp"])
setup(name="spam", version="1.2", packages=["spam"], ext_modules=[extension],
      cmdclass={"build_ext": BuildExtension})
"""
BINDING = "PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {}\n"


def sdist(folder: Path, setup: str, name: str = "spam", **files: str) -> Path:
    """Return a source archive with a setup.py, PKG-INFO, and further files ("spam_cu" is "spam.cu")."""
    contents = {
        "setup.py": setup,
        "PKG-INFO": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2\n",
        f"{name}/__init__.py": "",
        "spam.cpp": BINDING,
        "spam.cu": "",
    }
    for key, text in files.items():
        contents[key.replace("__", "/").replace("_", ".")] = text
    archive = folder / f"{name}-1.2.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        for path, text in contents.items():
            member = tarfile.TarInfo(f"{name}-1.2/{path}")
            member.size = len(text.encode())
            tar.addfile(member, io.BytesIO(text.encode()))
    return archive


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of a project's facts, on a described machine with the stub torch."""
    torch = make_stub_torch(tmp_path / "site", "2.11.0")
    monkeypatch.setenv("TORCHMILL_OWN_CONFIGS", str(tmp_path / "own"))
    monkeypatch.setenv("VIRTUAL_ENV", str(torch))
    host = load_host(ROOT / "tests/golden/hosts/debian-12.toml")
    host = replace(host, toolkits=HostToolkits())
    monkeypatch.setattr(command, "survey_machine", lambda *_: host)

    def lend(environment: DryEnvironment, *requirements: str, **_: bool) -> None:
        """Let the environment import setuptools of these tests; nothing else can be installed."""
        if "setuptools<82" not in requirements:
            raise CommandError(["pip"], 1, "ERROR: there is no index")
        (site,) = environment.venv.glob("lib/python*/site-packages")
        folder = Path(setuptools.__file__).parents[1]
        line = f"import sys; sys.path.append({str(folder)!r})\n"
        (site / "setuptools-of-tests.pth").write_text(line, encoding="utf-8")

    monkeypatch.setattr(DryEnvironment, "install", lend)
    return tmp_path / "own"


def drafted(own: Path, name: str = "spam") -> dict[str, Any]:
    """Return the content of a drafted file."""
    return tomllib.loads((own / "packages" / f"{name}.toml").read_text("utf-8"))


def test_a_switch_is_found_by_trying_it(own: Path, tmp_path: Path, invoke: InvokeHere) -> None:
    archive = sdist(tmp_path, SWITCHED)
    code, out, err = invoke(f"add {archive}")
    assert code == 0, err
    data = drafted(own)
    assert (data["name"], data["session"], data["kind"]) == ("spam", "spam", "torch-extension")
    assert [rule["set"] for rule in data["rule"]] == [{"SPAM_GPU": "1"}]
    assert data["smoke"] == ["import torch, spam, spam._C"]
    assert data["release"][0]["torch"] == ">=2.0"
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert f"spam-{python}-cpu" in out
    assert "not compiled: no CUDA" in out
    assert f"invoke build spam --from {archive}" in out

    code, _, err = invoke(f"add {archive}")
    assert code == 2
    assert "error[draft-exists]" in err
    code, _, err = invoke(f"add {archive} --force")
    assert code == 0, err


def test_the_file_is_printed_and_nothing_written(
    own: Path, tmp_path: Path, invoke: InvokeHere
) -> None:
    code, out, err = invoke(f"add {sdist(tmp_path, SWITCHED)} --print")
    assert code == 0, err
    text = out[out.index("#:schema") :]
    assert tomllib.loads(text)["name"] == "spam"
    assert not own.exists()


@pytest.mark.parametrize(
    ("setup", "code", "error"),
    [
        ("from setuptools import setup\nsetup(name='spam')\n", 17, "nothing-to-compile"),
        (
            "import urllib.request\nurllib.request.urlopen('https://example.org/x')\n" + SWITCHED,
            19,
            "setup-needs-network",
        ),
        (
            "import subprocess\nsubprocess.check_call(['git', 'clone', 'https://example.org/x'])\n"
            + SWITCHED,
            19,
            "setup-needs-network",
        ),
        (
            "import setuptools as s\ns.setup(name='spam', ext_modules=[s.Extension('x', ['spam.cpp'])])\n",
            17,
            "no-extension-of-torch",
        ),
    ],
)
def test_what_needs_no_file_is_refused(  # noqa: PLR0917
    own: Path, tmp_path: Path, invoke: InvokeHere, setup: str, code: int, error: str
) -> None:
    ended, _, err = invoke(f"add {sdist(tmp_path, setup)}")
    assert (ended, f"error[{error}]" in err) == (code, True), err
    assert not own.exists()


def test_a_setup_script_that_fails_is_drafted_from_its_texts(
    own: Path, tmp_path: Path, invoke: InvokeHere
) -> None:
    setup = f"raise RuntimeError('no such luck')\n{SWITCHED}"
    code, out, err = invoke(f"add {sdist(tmp_path, setup)}")
    assert code == 0, err
    assert "setup.py could not be run: RuntimeError: no such luck (setup.py:1)" in out
    assert drafted(own)["kind"] == "torch-extension"


def test_a_missing_module_is_named(own: Path, tmp_path: Path, invoke: InvokeHere) -> None:
    code, out, err = invoke(f"add {sdist(tmp_path, f'import no_such_module{chr(10)}{SWITCHED}')}")
    assert code == 0, err
    assert "No module named 'no_such_module'" in out
    assert drafted(own)["name"] == "spam"


def test_names_that_are_taken_are_refused(own: Path, tmp_path: Path, invoke: InvokeHere) -> None:
    scatter = sdist(tmp_path, SWITCHED.replace("spam", "torch_scatter"), "torch_scatter")
    code, _, err = invoke(f"add {scatter}")
    assert (code, "error[package-has-facts]" in err) == (2, True), err
    setup = SWITCHED.replace('packages=["spam"]', 'packages=["torch_scatter"]')
    code, _, err = invoke(f"add {sdist(tmp_path, setup)}")
    assert (code, "error[import-name-taken]" in err) == (2, True), err
    assert not own.exists()


def test_broken_archives_are_refused(own: Path, tmp_path: Path, invoke: InvokeHere) -> None:
    archive = sdist(tmp_path, SWITCHED)
    archive.write_bytes(archive.read_bytes()[:-40])
    code, _, err = invoke(f"add {archive}")
    assert (code, "error[damaged-archive]" in err) == (5, True), err
    code, _, err = invoke(f"add {tmp_path / 'none-1.0.tar.gz'}")
    assert (code, "error[no-such-origin]" in err) == (5, True), err
    archive.write_bytes(b"no archive")
    code, _, err = invoke(f"add {archive}")
    assert (code, "error[damaged-archive]" in err) == (5, True), err
    empty = tmp_path / "empty"
    empty.mkdir()
    code, _, err = invoke(f"add {empty}")
    assert (code, "error[no-python-project]" in err) == (5, True), err
    assert not own.exists()


@pytest.mark.parametrize(("name", "link"), [("../../evil", ""), ("inside/evil", "../..")])
def test_archives_that_lead_outside_are_refused(
    own: Path, tmp_path: Path, invoke: InvokeHere, name: str, link: str
) -> None:
    archive = tmp_path / "spam-1.2.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.addfile(tarfile.TarInfo("spam-1.2/setup.py"), io.BytesIO())
        if link:
            member = tarfile.TarInfo("spam-1.2/inside")
            member.type = tarfile.SYMTYPE
            member.linkname = link
            tar.addfile(member)
        tar.addfile(tarfile.TarInfo(f"spam-1.2/{name}"), io.BytesIO())
    code, _, err = invoke(f"add {archive}")
    assert (code, "error[hostile-archive]" in err) == (5, True), err
    assert not own.exists()
    assert not list(tmp_path.rglob("evil"))


@pytest.mark.parametrize(
    "address",
    ["git+https://example.org/spam", "git@example.org:spam.git", "https://example.org/spam.git"],
)
def test_a_repository_has_to_be_cloned(own: Path, invoke: InvokeHere, address: str) -> None:
    code, _, err = invoke(f"add {address}")
    assert (code, "error[origin-is-repository]" in err) == (5, True), err
    assert "git clone --recurse-submodules" in err
    assert not own.exists()


def test_a_torch_older_than_the_package_takes_is_refused(
    own: Path, tmp_path: Path, invoke: InvokeHere
) -> None:
    setup = SWITCHED.replace('version="1.2",', 'version="1.2", install_requires=["torch>=2.13"],')
    code, out, err = invoke(f"add {sdist(tmp_path, setup)}")
    assert code == 3, err
    assert "plan          none: " in out
    assert "torch 2.11.0" in out
    assert drafted(own)["release"][0]["torch"] == ">=2.13"
    assert "next:" not in out


@pytest.mark.parametrize("name", ["torch_scatter", "Torch.Scatter", "torch-scatter==2.1.2"])
def test_a_package_with_facts_is_refused_before_it_is_downloaded(
    own: Path, invoke: InvokeHere, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")  # nobody answers there
    code, _, err = invoke(f"add {name}")
    assert (code, "error[package-has-facts]" in err) == (2, True), err
    assert not own.exists()


def test_a_package_for_rocm_alone_is_refused(own: Path, tmp_path: Path, invoke: InvokeHere) -> None:
    source = tmp_path / "amd"
    source.mkdir()
    (source / "setup.py").write_text(SWITCHED, encoding="utf-8")
    (source / "kernel.hip").touch()
    code, _, err = invoke(f"add {source}")
    assert (code, "error[rocm-alone]" in err) == (3, True), err
    assert not own.exists()


def test_an_index_without_the_package_or_with_wheels_alone(
    own: Path, invoke: InvokeHere, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = Index()
    files.add("eggs-1.0-py3-none-any.whl", b"x")
    with serving(files):
        monkeypatch.setenv("PIP_INDEX_URL", files.url)
        code, _, err = invoke("add spam")
        assert (code, "error[not-on-index]" in err) == (4, True), err
        code, _, err = invoke("add eggs")
        assert (code, "error[no-source-archive]" in err) == (18, True), err
    code, _, err = invoke("add 'spam eggs'")
    assert (code, without_code(err).startswith("error: ")) == (2, True), err
    assert not own.exists()


def test_an_unknown_name_builds_nothing_without_a_terminal(invoke: InvokeHere) -> None:
    code, _, err = invoke("build spamandeggs --yes")
    assert (code, "error[unknown-build]" in err) == (4, True), err
    assert "invoke add spamandeggs" in err


OWN_CAPABILITIES = """\
import os, torch
from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CUDAExtension
if not torch.cuda.is_available():
    raise RuntimeError("no GPU")
os.environ["TORCH_CUDA_ARCH_LIST"] = "7.0"
flags = ["-O3", "-gencode", "arch=compute_80,code=sm_80", "-gencode=arch=compute_90,code=sm_90"]
for number in (86, 89):
    flags += ["-gencode", f"arch=compute_{number},code=sm_{number}"]
flags += ["-arch=sm_75", '--generate-code=arch=compute_70,code=[sm_70,compute_70]']
setup(name="spam", version="1.2", packages=["spam"],
      ext_modules=[CUDAExtension("spam._C", ["spam.cpp", "spam.cu"],
                                 extra_compile_args={"cxx": ["-march=native"], "nvcc": flags})])
"""


def test_edits_are_kept_if_a_run_confirms_them(
    own: Path, tmp_path: Path, invoke: InvokeHere
) -> None:
    code, out, err = invoke(f"add {sdist(tmp_path, OWN_CAPABILITIES)} --print")
    assert code == 0, err
    data = tomllib.loads(out[out.index("#:schema") :])
    edits = [rule for rule in data["rule"] if "prepare" in rule]
    assert [rule.get("when", {}) for rule in edits] == [{"cuda": ">=0"}, {}, {}, {}]
    assert data["capabilities"] == ">=7.0"
    assert "no build without CUDA was found: setup.py:5: RuntimeError: no GPU" in out
    assert not own.exists()


VIRTUAL = """\
from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CUDAExtension
setup(name="spam", version="1.2", packages=["spam"],
      ext_modules=[CUDAExtension("spam._C", ["spam.cpp", "spam.cu"], extra_compile_args=["-arch=compute_50"])])
"""


def test_a_virtual_capability_gives_way_as_a_whole_flag(
    own: Path, tmp_path: Path, invoke: InvokeHere
) -> None:
    code, out, err = invoke(f"add {sdist(tmp_path, VIRTUAL)} --print")
    assert code == 0, err
    data = tomllib.loads(out[out.index("#:schema") :])
    ((command,),) = [rule["prepare"] for rule in data["rule"] if "prepare" in rule]
    script = tmp_path / "setup.py"
    script.write_text(VIRTUAL, encoding="utf-8")
    words = [word.replace("$$", "$") for word in command]
    subprocess.run(words, cwd=tmp_path, check=True)
    assert 'extra_compile_args=["-DCAPABILITIES_OF_BUILD"]' in script.read_text(encoding="utf-8")
    assert not own.exists()


TAGGED = """\
from setuptools import Command, setup
from torch.utils.cpp_extension import BuildExtension, CppExtension

class AnyPython(Command):  # setuptools has had bdist_wheel since 70.1
    user_options = []
    initialize_options = finalize_options = run = lambda self: None

    def get_tag(self):
        return "py3", "none", "linux_x86_64"

setup(name="spam", version="1.2", packages=["spam"], ext_modules=[CppExtension("spam._C", ["spam.cpp"])],
      cmdclass={"build_ext": BuildExtension, "bdist_wheel": AnyPython})
"""


def test_a_wheel_for_every_python_has_its_tag(
    own: Path, tmp_path: Path, invoke: InvokeHere
) -> None:
    code, _, err = invoke(f"add {sdist(tmp_path, TAGGED)}")
    assert code == 0, err
    assert drafted(own)["release"][0]["wheel_tag"] == "py3-none"


BACKEND = """\
from setuptools import build_meta
from setuptools.build_meta import *

def get_requires_for_build_wheel(settings=None):
    return [*build_meta.get_requires_for_build_wheel(settings), "eggs>=2", "torch>=2"]
"""


def test_a_backend_of_the_source_is_asked_what_it_requires(
    own: Path, tmp_path: Path, invoke: InvokeHere
) -> None:
    pyproject = (
        '[build-system]\nrequires = ["setuptools"]\nbuild-backend = "behind"\n'
        'backend-path = ["inner"]\n'
    )
    files = {"pyproject_toml": pyproject, "inner__behind_py": BACKEND}
    # The stub of torch has a build command that setuptools cannot use.
    setup = SWITCHED.replace('cmdclass={"build_ext": BuildExtension}', "")
    code, out, err = invoke(f"add {sdist(tmp_path, setup, **files)}")
    assert code == 0, err
    assert "could not be asked" not in out
    (requires,) = [rule["requires"] for rule in drafted(own)["rule"] if "requires" in rule]
    assert [text for text in requires if text != "wheel"] == ["build", "eggs>=2"]


CONSTANT = """\
from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CppExtension, CUDAExtension
CPU_ONLY = False
if CPU_ONLY:
    extension = CppExtension("spam._C", ["spam.cpp"])
else:
    extension = CUDAExtension("spam._C", ["spam.cpp", "spam.cu"])
setup(name="spam", version="1.2", packages=["spam"], ext_modules=[extension],
      cmdclass={"build_ext": BuildExtension})
"""


def test_a_constant_of_setup_py_is_changed_where_no_variable_helps(
    own: Path, tmp_path: Path, invoke: InvokeHere
) -> None:
    code, out, err = invoke(f"add {sdist(tmp_path, CONSTANT)}")
    assert code == 0, err
    (rule,) = drafted(own)["rule"]
    assert rule["when"] == {"variant": "cpu"}
    assert rule["prepare"][0][-2:] == [r"s/^(CPU_ONLY\s*=\s*)False\b/\1True/", "setup.py"]
    assert "yes, with CPU_ONLY = True in setup.py" in out
    assert "decides what is compiled" not in out


def test_a_variable_that_asks_for_a_gpu_as_well_is_found(
    own: Path, tmp_path: Path, invoke: InvokeHere
) -> None:
    setup = f"import torch\n{SWITCHED}".replace(
        '== "1":', '== "1":\n    if not torch.cuda.is_available():\n        raise OSError("no GPU")'
    )
    code, out, err = invoke(f"add {sdist(tmp_path, setup)}")
    assert code == 0, err
    rules = drafted(own)["rule"]
    assert [rule.get("set") for rule in rules] == [{"SPAM_GPU": "1"}, None]
    assert rules[1]["prepare"][0][0] == "sed"
    assert "yes, with SPAM_GPU=1, a GPU is assumed" in out


@pytest.mark.parametrize(("answer", "known"), [(True, True), (False, False)])
def test_a_terminal_is_asked_before_a_stranger_is_drafted(
    shipped: Facts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, answer: bool, known: bool
) -> None:
    drafts: list[str] = []
    questions: list[str] = []

    def agree(question: str, **_: bool) -> bool:
        questions.append(question)
        return answer

    def add(*_: object, source: str, **__: object) -> CommandOutput:
        drafts.append(source)
        return CommandOutput("drafted")

    new_facts = replace(shipped)
    monkeypatch.setattr(offer, "agree", agree)
    monkeypatch.setattr(command, "add_package", add)
    monkeypatch.setattr(offer, "_read_anew", lambda _: new_facts)
    layout = Layout(tmp_path, tmp_path)
    arguments = (shipped, layout, ["spamandeggs", "flash-attn"], "", NO_OPTIONS)
    assert offer.offer_drafts(*arguments, asks=True) is shipped, "there is no terminal"
    monkeypatch.setattr(sys, "stdin", Terminal())
    assert offer.offer_drafts(*arguments, asks=False) is shipped
    assert not questions
    facts = offer.offer_drafts(*arguments, asks=True)
    assert (facts is new_facts) == known
    assert drafts == (["spamandeggs"] if known else [])
    assert len(questions) == 1


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("setup", "kind"),
    [("import time; time.sleep(60)", "time"), ("import os; os.abort()", "exception")],
)
def test_a_setup_script_that_does_not_end_is_ended(tmp_path: Path, setup: str, kind: str) -> None:
    (tmp_path / "setup.py").write_text(setup, encoding="utf-8")
    scenario = {"root": str(tmp_path), "seconds": 0.2, "cuda_home": None, "variables": {}}
    stand_in = {"version": "2.15.0", "cuda": "13.2"}
    request = tmp_path / "request.json"
    request.write_text(json.dumps({"stand_in": stand_in, "scenarios": [scenario]}), "utf-8")
    answer = tmp_path / "answer.json"
    program = ROOT / "checks/dry_run.py"
    subprocess.run([sys.executable, "-I", program, request, answer], check=True)
    (record,) = json.loads(answer.read_text("utf-8"))["records"]
    assert record["error"]["kind"] == kind
