"""Facts: what is read, how mistakes are reported, and whether the shipped facts agree."""

import shutil
from pathlib import Path
from typing import get_args

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from tests.support.declared import ONE, declared
from tests.support.refusals import refused
from torchmill.config import facts_reader
from torchmill.config.conda_facts import CondaName
from torchmill.config.costs import KnownUnit, MeasuredRun
from torchmill.config.facts import Facts
from torchmill.config.images import ImageRole
from torchmill.config.release_lookup import find_release, partner_releases
from torchmill.config.toml_reader import read_toml
from torchmill.config.toolkit import PROVIDERS
from torchmill.config.versions import is_within
from torchmill.host.host import Host, HostPlatform, HostResources
from torchmill.plan import build_plan, cell_lookup
from torchmill.plan.build_options import Options

HOST = Host(
    arch="x86_64",
    system="linux",
    resources=HostResources(cores=4, memory=2**33),
    platform=HostPlatform(glibc="2.36"),
)
RUN = """
[[run]]
package = "base"
release = "1.13.1"
variant = "cpu"
machine = "two cores"
scope = "job"
wall_seconds = 60
source = "test"
"""
IMAGE = """
[[base]]
role = "system"
image = "docker.io/library/debian"
tag = "bookworm-slim"
arches = ["x86_64"]
distribution = "debian"
version = "12"
manager = "apt"
source = "test"

[tools]
apt = ["git"]
dnf = ["git"]
yum = ["git"]

[uv]
version = "0.9"
pythons = ["3.13"]
source = "test"
"""
SOURCES = """
[[pypi]]
kind = "cudnn"
cuda = "11"
packages = ["nvidia-cudnn-cu11"]
arches = ["x86_64"]
source = "the index"

[[debian]]
kind = "toolkit"
versions = ["11.8"]
packages = ["nvidia-cuda-toolkit"]
arches = ["x86_64"]
places = ["bookworm/non-free"]
source = "its archive"
"""
PART = """
[nvtx]
called = "NVTX"
package = "nvidia-nvtx"
headers = ["n.h"]
libraries = []
cuda = "<13"
source = "the wheel"
"""
UNIT = """
[[unit]]
package = "base"
pattern = "a/*.cpp"
peak = "2 GiB"
seconds = 5
source = "seen"
"""
WHEELS = """
[[wheels]]
name = "x"
url = "u"
packages = []
variants = "cpu"
arches = []
source = "test"
"""
CAUSE = """
[[cause]]
name = "library-unlinked"
patterns = ["undefined reference to '(?P<name>[^']+)'"]
cause = "test"
cure = "{answer}"
source = "test"
examples = ["undefined reference to 'a'"]
known = "symbols"
"""
# Files that the small facts do not have, for tests to write with one mistake each.
FILES = {
    "packages/tiny-scatter.toml": ONE,
    "runs.toml": RUN,
    "linking.toml": 'limit = "2 GiB"\nmargin = 0.3\nsplit = ">=1.8"\n',
    "images.toml": IMAGE,
    "conda.toml": '[[name]]\npypi = ["a"]\nconda = "b"\n',
    "toolkit_sources.toml": SOURCES,
    "toolkit_parts.toml": PART,
    "units.toml": UNIT,
    "indexes.toml": WHEELS,
    "causes.toml": CAUSE,
    "known_names.toml": '[names]\nsymbols = "library: a"\n',
}


def write(configs: Path, file: str, old: str, new: str) -> None:
    path = configs / file
    text = path.read_text(encoding="utf-8") if path.exists() else FILES[file]
    assert old in text
    path.write_text(text.replace(old, new, 1), encoding="utf-8")


def problems(configs: Path) -> str:
    with refused("facts-invalid") as caught:
        facts_reader.read_facts(configs)
    return str(caught.value)


def test_releases_are_oldest_first_and_dependents_are_paired(small_facts: Facts) -> None:
    assert [release.version for release in small_facts.releases["base"]] == ["1.0.0", "2.0.0"]
    addon = small_facts.releases["addon"][0]
    assert (addon.torch, addon.tag) == ("1.0.0", "v0.1.0")
    assert addon.pythons == ("3.9", "3.10"), (
        "by default, a dependent release has the axes of its partner"
    )


def test_each_file_is_read(configs: Path) -> None:
    for file, text in FILES.items():
        (configs / file).write_text(text)
    (configs / "runs.toml").unlink()  # its [assumed] would be long
    facts = facts_reader.read_facts(configs)
    assert facts.costs.known_units == (KnownUnit("a/*.cpp", 2 * 2**30, 5, "base", None, "seen"),)
    debian, pypi = facts.toolkit_sources  # in the order of requests
    assert (debian.provider, debian.versions, debian.places) == (
        "debian",
        ("11.8",),
        ("bookworm/non-free",),
    )
    assert (pypi.provider, pypi.versions, pypi.cuda) == ("pypi", (), "11")
    (nvtx,) = facts.toolkit_parts
    assert (nvtx.name, nvtx.called, nvtx.headers, nvtx.without) == ("nvtx", "NVTX", ("n.h",), "")
    assert [version for version in ("12.8", "13.0") if is_within(nvtx.cuda, version)] == ["12.8"]
    (wheels,) = facts.offered_wheels
    assert (wheels.variants, wheels.label, wheels.default) == (("cpu",), "", False)
    assert facts.conda is not None
    assert facts.conda.names == {"a": CondaName("b", "same")}
    assert facts.linking is not None
    assert facts.linking.limit == 2**31
    assert [cause.answers for cause in facts.causes] == ["library: a"]
    assert facts.images.bases[0].reference == "docker.io/library/debian:bookworm-slim"


def test_a_report_may_be_sparse(tmp_path: Path) -> None:
    (tmp_path / "runs.toml").write_text(RUN)
    (run,) = read_toml(tmp_path / "runs.toml", []).read_each("run", MeasuredRun)
    assert (run.wall_seconds, run.cpu_seconds, run.cores, run.peak) == (60, None, None, None)


def test_optional_files_may_be_missing(small_facts: Facts) -> None:
    assert (
        small_facts.costs.runs,
        small_facts.costs.peaks,
        small_facts.costs.assumptions,
        small_facts.linking,
        small_facts.conda,
    ) == (
        (),
        (),
        None,
        None,
        None,
    )
    assert (
        small_facts.costs.known_units,
        small_facts.offered_wheels,
        small_facts.toolkit_sources,
        small_facts.toolkit_parts,
    ) == (
        (),
        (),
        (),
        (),
    )
    assert (small_facts.images.bases, small_facts.causes) == ((), ())


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        (
            "releases/1.0.0.toml",
            '"3.9", "3.10"',
            '"3.9", 3.10',
            "1.0.0.toml: base: 'pythons' is the number 3.1: quote it, as in \"3.10\"",
        ),
        (
            "releases/1.0.0.toml",
            'pythons = ["3.9", "3.10"]',
            "pythons = 3",
            "1.0.0.toml: base: 'pythons' is 3, expected a list of strings",
        ),
        (
            "releases/1.0.0.toml",
            'pythons = ["3.9", "3.10"]',
            "pythons = []",
            (
                "1.0.0.toml: base: 'pythons' is empty: "
                "expected Pythons such as '3.10', or leave the key out"
            ),
        ),
        *(
            (
                "packages/base.toml",
                'tag = "v{version}"',
                f'tag = "{tag}"',
                "which cannot name a folder",
            )
            for tag in (
                "../../../v{version}",
                "/v{version}",
                ".v{version}",
                "a/v{version}",
                "-{version}",
                "v {version}",
            )
        ),
        (
            "packages/base.toml",
            'checks = "sample"',
            'checks = "../../base"',
            "which cannot name a folder",
        ),
        ("arches.toml", "[x86_64]", '["../x86_64"]', "'../x86_64' cannot name an arch"),
        (
            "packages/base.toml",
            'reason = "numpy 2 came later"',
            'reeson = "numpy 2 came later"',
            "base.toml: rule 3: unknown key 'reeson'; did you mean reason?",
        ),
        (
            "packages/base.toml",
            'when = { variant = "cpu" }',
            'when = { varient = "cpu" }',
            "base.toml: rule 1: when: unknown key 'varient'; did you mean variant?",
        ),
        (
            "packages/base.toml",
            'when = { variant = "cpu" }',
            'when = "cpu"',
            "base.toml: rule 1: 'when' is 'cpu', expected a table",
        ),
        (
            "packages/base.toml",
            'release = "<2"',
            'release = "before 2"',
            "base.toml: rule 3: when: 'release' is 'before 2', which is not a version specifier",
        ),
        (
            "packages/base.toml",
            'requires = ["wheel", "numpy"]',
            'prepare = ["true", 1]',
            "base.toml: rule 2: 'prepare' is 1, expected a list of strings",
        ),
        (
            "packages/base.toml",
            'memory_per_job = "2 GiB"',
            'memory_per_job = "two"',
            "'memory_per_job': 'two'",
        ),
        (
            "releases/2.0.0.toml",
            '"x86_64", "aarch64"',
            '"x86_64", "riscv"',
            "base 2.0.0: unknown arch 'riscv'; arches.toml has x86_64, aarch64, arm64",
        ),
        (
            "packages/base.toml",
            'requires = ["wheel", "numpy"]',
            'patches = ["absent.patch"]',
            "base.toml: rule 2: patch 'absent.patch' is not in patches/base/",
        ),
        (
            "packages/base.toml",
            'disk = "1 GiB"',
            'disk = "1 GiB"\ncompilers = "make"',
            "base.toml: 'compilers' is 'make', expected one of cmake, path",
        ),
        (
            "packages/base.toml",
            'requires = ["wheel", "numpy"]',
            'front_end = "pip"',
            "base.toml: rule 2: 'front_end' is 'pip', expected one of setup.py, pep517",
        ),
        (
            "packages/base.toml",
            'disk = "1 GiB"',
            'disk = "1 GiB"\nrule = [1]',
            "base.toml: ",  # invalid TOML: `rule` is defined twice
        ),
        ("toolkits.toml", '["10.2"]', '["10.2"', "toolkits.toml: "),
        ("toolkits.toml", '["10.2"]', '["ten"]', "'ten' is not a version of CUDA"),
        ("toolkits.toml", 'gcc = "<9"', 'gcc = "<9"\ndriver = "x"', "'driver' is 'x', expected a"),
        (
            "toolkits.toml",
            '"3.7", "5.0", "6.0", "7.0", "7.5"]',
            '"8.6+PTX"]',
            "toolkits.toml: 10.2: 'capabilities' has '8.6+PTX', expected one such as '8.6' or",
        ),
        (
            "packages/base.toml",
            'requires = ["numpy<2"]',
            'requires = ["numpy<<2"]',
            "base.toml: rule 3: 'requires' has 'numpy<<2', which is not a requirement (PEP 508)",
        ),
        (
            "packages/base.toml",
            'memory_per_job = "2 GiB"',
            'memory_per_job = "0 GiB"',
            "'memory_per_job' is '0 GiB', expected bytes above 0",
        ),
        (
            "releases/1.0.0.toml",
            'source = "test"',
            'source = "test"\nwheels = { win_amd64 = ["3.x"] }',
            "1.0.0.toml: base: wheels: 'win_amd64' has '3.x', which is not a Python",
        ),
        (
            "releases/1.0.0.toml",
            'range = ">=10.2,<12"',
            'range = ">=10.2,<12"\npypi = "new"',
            "1.0.0.toml: base: cuda: 'pypi' is 'new', expected a version",
        ),
        (
            "arches.toml",
            'oldest_glibc = "2.5"',
            'oldest_glibc = "old"',
            "arches.toml: x86_64: 'oldest_glibc' is 'old', expected a version",
        ),
        (
            "packages/base.toml",
            'requires = ["wheel", "numpy"]',
            "prepare = [[]]",
            "base.toml: rule 2: 'prepare' has an empty command",
        ),
        (
            "toolkits.toml",
            'arches = ["x86_64"]',
            "arches = " + "[" * 5000,
            "toolkits.toml: it is nested too deeply",
        ),
        (
            "packages/tiny-scatter.toml",
            'pypi = "tiny-scatter"',
            "",
            "tiny-scatter.toml: neither 'repository' nor 'pypi' says where",
        ),
        (
            "packages/tiny-scatter.toml",
            'after = "base"',
            "",
            "tiny-scatter.toml: it has [[release]], which pair with a release of 'after'",
        ),
        (
            "packages/tiny-scatter.toml",
            'after = "base"',
            'after = "bass"',
            "tiny-scatter.toml: 'after' names 'bass'; packages/ has addon, base",
        ),
        (
            "packages/tiny-scatter.toml",
            'after = "base"',
            'after = "base"\nimports = ["tiny-scatter"]',
            "tiny-scatter.toml: 'imports' leads back to tiny-scatter itself",
        ),
        (
            "packages/tiny-scatter.toml",
            'session = "scatter"',
            'session = "wheel"',
            "'session' is 'wheel', which is that of base",
        ),
        (
            "packages/tiny-scatter.toml",
            'version = "1.0"',
            'version = "one"',
            "release 1: 'version' is 'one', expected a version",
        ),
        (
            "packages/tiny-scatter.toml",
            'torch = ">=1"',
            'torch = "one"',
            "release 1: 'torch' is 'one', which is not a version specifier",
        ),
        ("packages/tiny-scatter.toml", 'torch = ">=1"', "", "release 1: 'torch' is missing"),
        (
            "packages/tiny-scatter.toml",
            'torch = ">=2"',
            'torch = ">=3"',
            "release 1.10: base '>=3' leaves it no release of base",
        ),
        (
            "packages/tiny-scatter.toml",
            'torch = ">=1"',
            'torch = ">=2"',
            "release 1.0: base '>=2' leaves it no release of base",
        ),
        (
            "packages/tiny-scatter.toml",
            '"import tiny_scatter"',
            '"import tiny scatter"',
            "'smoke', line 1: invalid syntax",
        ),
        (
            "packages/tiny-scatter.toml",
            'cuda = ">=12"',
            'cudda = ">=12"',
            "release 2: unknown key 'cudda'; did you mean cuda?",
        ),
        (
            "runs.toml",
            '"base"',
            '"bass"',
            "runs.toml: unknown package 'bass'; packages/ has addon, base",
        ),
        *(
            ("runs.toml", "60", number, f"'wall_seconds' is {text}, expected a number above 0")
            for number, text in (
                ("0", "0"),
                ("-60", "-60"),
                ("nan", "nan"),
                ("inf", "inf"),
                ("1e300", "1e+300"),
                ("1" + "0" * 400, "a number that is too large"),
            )
        ),
        ("runs.toml", "60", "1" + "0" * 5000, "runs.toml: it has a number of thousands of digits"),
        ("runs.toml", "60", "60\ncores = 0", "'cores' is 0, expected a whole number from 1"),
        ("runs.toml", "60", "60\n[assumed]\nyears = 0", "'years' is 0, expected a number above 0"),
        (
            "runs.toml",
            "60",
            "60\n[assumed]\nscaling = 1.5",
            "'scaling' is 1.5, expected a number above 0, at most 1",
        ),
        (
            "runs.toml",
            "60",
            "60\n[assumed]\ntree = { low = 9.0, high = 3.5 }",
            "runs.toml: assumed: tree: 'low' is 9, more than 'high', 3.5",
        ),
        ("runs.toml", '"job"', '"night"', "'scope' is 'night', expected one of compile, job"),
        (
            "runs.toml",
            "60",
            '60\n[assumed]\nscaling = "much"',
            "'scaling' is 'much', expected a number",
        ),
        ("runs.toml", "", "", "runs.toml: assumed: job_seconds: key 'low' is missing"),
        (
            "linking.toml",
            "split",
            "spilt",
            "linking.toml: unknown key 'spilt'; did you mean split?",
        ),
        (
            "images.toml",
            '"apt"',
            '"pacman"',
            "'manager' is 'pacman', expected one of apt, dnf, yum",
        ),
        (
            "images.toml",
            'tag = "bookworm-slim"',
            'digest = "sha256:12"',
            "'digest' is 'sha256:12', expected sha256: and 64 hexadecimal digits",
        ),
        ("images.toml", '"system"', '"cuda"', "images.toml: base 1: key 'toolkit' is missing"),
        ("images.toml", 'source = "test"', "sice = 1", "unknown key 'sice'"),
        (
            "images.toml",
            'version = "0.9"',
            'version = "new"',
            "images.toml: uv: 'version' is 'new', expected a version",
        ),
        ("conda.toml", '["a"]', '["A"]', "'A' must be written 'a' here"),
        (
            "conda.toml",
            'conda = "b"',
            'conda = "b"\nbounds = "patch"',
            "'bounds' is 'patch', expected one of same",
        ),
        (
            "conda.toml",
            'conda = "b"',
            'conda = "b"\n[[name]]\npypi = ["a"]\nconda = "c"',
            "'a' already has a name, b",
        ),
        ("conda.toml", "[[name]]", "[subdirectories]\n[[name]]", "unknown key 'subdirectories'"),
        (
            "toolkit_sources.toml",
            "[[debian]]",
            "[[debain]]",
            "unknown key 'debain'; did you mean debian?",
        ),
        (
            "toolkit_sources.toml",
            "versions",
            "verions",
            "debian 1: unknown key 'verions'; did you mean versions?",
        ),
        (
            "toolkit_sources.toml",
            '"cudnn"',
            '"tool"',
            "pypi 1: 'kind' is 'tool', expected one of toolkit, ",
        ),
        (
            "toolkit_parts.toml",
            "headers",
            "header",
            "nvtx: unknown key 'header'; did you mean headers?",
        ),
        ("toolkit_parts.toml", 'package = "nvidia-nvtx"', "", "nvtx: key 'package' is missing"),
        ("units.toml", "seconds", "secnds", "unknown key 'secnds'; did you mean seconds?"),
        ("units.toml", '"2 GiB"', '"much"', "'peak': 'much' is not a quantity of bytes"),
        (
            "units.toml",
            '"base"',
            '"bass"',
            "'a/*.cpp': unknown package 'bass'; packages/ has addon, base",
        ),
        ("indexes.toml", "source", "sorce", "indexes.toml: wheels 1: key 'source' is missing"),
        (
            "causes.toml",
            'known = "symbols"',
            'known = "headers"',
            "library-unlinked: 'known' is 'headers', expected a table of known_names.toml",
        ),
    ],
)
def test_each_mistake_is_reported_with_its_place(
    configs: Path, file: str, old: str, new: str, message: str
) -> None:
    write(configs, file, old, new)
    text = problems(configs)
    assert message in text


def test_names_of_capabilities_are_numbers(configs: Path) -> None:
    (configs / "gpus.toml").write_text('[x]\narchitecture = "Ampere"\ngpus = []\n')
    (configs / "arch_names.toml").write_text(
        '[[name]]\nname = "Ampere"\nrelease = ">=1"\nmeans = ["8.6", "9.0a"]\n'
    )
    text = problems(configs)
    assert "gpus.toml: 'x' is no capability such as '8.6'" in text
    assert "arch_names.toml: name 1: 'means' has '9.0a', expected one such as '8.6'" in text


def test_all_problems_come_in_one_message(configs: Path) -> None:
    write(configs, "packages/base.toml", 'session = "wheel"', "session = 1")
    write(configs, "packages/addon.toml", 'disk = "1 GiB"', 'disc = "1 GiB"')
    text = problems(configs)
    assert "base.toml: 'session' is 1, expected a string" in text
    assert "addon.toml: key 'disk' is missing" in text
    assert "addon.toml: unknown key 'disc'; did you mean disk?" in text


def test_a_folder_without_packages_is_refused(tmp_path: Path) -> None:
    assert "holds no packages/*.toml" in problems(tmp_path)


def test_facts_without_a_release_of_the_base_package_are_refused(configs: Path) -> None:
    for file in (configs / "releases").iterdir():
        file.unlink()
    assert "holds no releases/*.toml" in problems(configs)


def test_a_release_that_is_described_twice_is_refused(configs: Path) -> None:
    with (configs / "releases/1.0.0.toml").open("a", encoding="utf-8") as file:
        file.write('[tiny-scatter]\nversion = "0.9"\nsource = "test"\n')
    write(configs, "packages/tiny-scatter.toml", "", "")
    assert "tiny-scatter 0.9 stands in releases/ too; say it in one place" in problems(configs)


def test_a_release_that_is_described_twice_is_reported_beside_other_mistakes(configs: Path) -> None:
    with (configs / "releases/1.0.0.toml").open("a", encoding="utf-8") as file:
        file.write('[tiny-scatter]\nversion = "0.9"\nsource = "test"\n')
    (configs / "releases/9.0.0.toml").write_text("[base", encoding="utf-8")
    write(configs, "packages/tiny-scatter.toml", "", "")
    assert "tiny-scatter 0.9 stands in releases/ too; say it in one place" in problems(configs)


# Packages whose own file declares their releases


def test_each_torch_is_paired_with_the_newest_release_that_accepts_it(configs: Path) -> None:
    facts = declared(configs)
    old, new = facts.releases["tiny-scatter"]
    assert [(release.version, release.torch, release.tag) for release in (old, new)] == [
        ("1.0", "1.0.0", "v1.0"),
        ("1.10", "2.0.0", "v1.10"),
    ]
    base = facts.releases["base"]
    assert (old.pythons, old.arches, old.cuda) == (base[0].pythons, base[0].arches, base[0].cuda)
    assert (new.pythons, new.arches, str(new.cuda.range)) == (("3.10",), ("x86_64",), ">=12")
    assert (old.proof.sha256, new.proof.sha256) == (None, "abc")


def test_a_declared_release_is_built_like_any_other(configs: Path) -> None:
    old = configs / "releases/1.0.0.toml"
    old.write_text(old.read_text().replace("[base.cuda]", '[base.cuda]\npypi = "11.8"', 1))
    facts = declared(configs)
    first = facts.releases["base"][0]
    cell = cell_lookup.find_cell(facts, "scatter-3.10-cu118", "x86_64", first)
    computed = build_plan.compute_plan(facts, cell, HOST, Options())
    assert (
        computed.wheel.file_name
        == "tiny_scatter-1.0+cu118.base1.0.0-cp310-cp310-manylinux_2_36_x86_64.whl"
    )
    assert computed.wheel.torch == "base==1.0.0+cu118"
    official = build_plan.compute_plan(facts, cell, HOST, Options(torch="PyPI"))
    assert "base===1.0.0" in official.requirements
    assert build_plan.compute_plan(facts, cell, HOST, Options(label="none")).wheel.version == "1.0"
    (partner,) = partner_releases(facts, first, ["scatter"])
    assert partner.version == "1.0"


# Kinds of packages

KIND = """
after = "base"
compilers = "path"
memory_per_job = "2 GiB"
disk = "1 GiB"

[[rule]]
set = { A = "1" }
reason = "of the kind"
"""


def write_kind(configs: Path, kind: str = KIND, lines: str = 'disk = "3 GiB"') -> None:
    """Write a kind, and the package tiny-kin of that kind with a rule of its own."""
    (configs / "kinds").mkdir()
    (configs / "kinds" / "tiny.toml").write_text(kind, encoding="utf-8")
    (configs / "packages" / "tiny-kin.toml").write_text(
        f"""
name = "tiny-kin"
session = "kin"
kind = "tiny"
pypi = "tiny-kin"
import_name = "tiny_kin"
{lines}

[[release]]
version = "1.0"
torch = ">=1"
source = "test"

[[rule]]
set = {{ B = "2" }}
reason = "of the package"
""",
        encoding="utf-8",
    )


def test_a_kind_has_the_rules_and_values_that_its_packages_leave_out(configs: Path) -> None:
    write_kind(configs)
    package = facts_reader.read_facts(configs).packages["tiny-kin"]
    assert (package.kind, package.after, package.setup.compilers) == ("tiny", "base", "path")
    assert (package.setup.memory_per_job, package.setup.disk) == (2 << 30, 3 << 30)
    assert [(rule.name, dict(rule.set)) for rule in package.rules] == [
        ("tiny.toml: rule 1", {"A": "1"}),
        ("tiny-kin.toml: rule 1", {"B": "2"}),
    ]


def test_an_unknown_kind_is_refused_with_those_that_exist(configs: Path) -> None:
    write_kind(configs)
    write(configs, "packages/tiny-kin.toml", 'kind = "tiny"', 'kind = "../tiny"')
    assert "tiny-kin.toml: 'kind' is '../tiny'; kinds/ has tiny" in problems(configs)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("set = {", "sets = {", "tiny.toml: rule 1: unknown key 'sets'; did you mean set?"),
        ("after =", "afterr =", "tiny.toml: unknown key 'afterr'; did you mean after?"),
        ("[[rule]]", "[[rule]", "tiny.toml: "),
    ],
)
def test_a_mistake_in_a_kind_leaves_its_packages_out(
    configs: Path, old: str, new: str, message: str
) -> None:
    write_kind(configs, KIND.replace(old, new))
    assert message in problems(configs)
    assert "tiny-kin" not in facts_reader.read_usable_facts(configs).packages


# The facts that ship


def test_shipped_runs_name_releases_and_sources(shipped: Facts) -> None:
    for run in shipped.costs.runs:
        versions = {release.version for release in shipped.releases[run.package]}
        assert run.release in versions, run.source
        assert run.source
        assert run.machine


def test_shipped_units_have_sources_and_sizes(shipped: Facts) -> None:
    assert len(shipped.costs.known_units) > 30
    assert [
        unit.pattern
        for unit in shipped.costs.known_units
        if not unit.source or not 2**26 < unit.peak < 2**33
    ] == []
    assert len({unit.pattern for unit in shipped.costs.known_units}) == len(
        shipped.costs.known_units
    )


def test_archives_are_read_without_images(configs: Path) -> None:
    """A mistake in them must show, and the archives of a toolkit need no image."""
    text = (
        '[[archive]]\nkind = "toolkit"\nversion = "11.8"\narches = ["x86_64"]\n'
        'url = "https://example.org/cuda.run"\nsource = "test"\n'
    )
    (configs / "archives.toml").write_text(text)
    (archive,) = facts_reader.read_facts(configs).images.archives
    assert (archive.version, archive.arches) == ("11.8", ("x86_64",))
    (configs / "archives.toml").write_text(f"{text}sice = 1\n")
    assert "archives.toml" in problems(configs)


def test_shipped_images_are_complete(shipped: Facts) -> None:
    bases = shipped.images.bases
    assert {base.role for base in bases} == set(get_args(ImageRole))
    keys = []
    for base in bases:
        keys += [(base.role, base.name, arch) for arch in base.arches]
    assert len(keys) == len(set(keys))
    toolkits = {toolkit.version for toolkit in shipped.toolkits}
    assert {base.toolkit for base in bases if base.toolkit} <= toolkits
    for base in bases:
        assert set(base.arches) <= {"x86_64", "aarch64"}
        assert base.image.count("/") >= 2, "podman and buildah require the registry in the name"
        assert "{major}" in base.compiler or not base.compilers


def test_shipped_conda_names_are_of_machines_and_packages(shipped: Facts) -> None:
    assert shipped.conda is not None
    assert shipped.conda.subdirs["x86_64"] == "linux-64"
    assert shipped.conda.names["torch"] == CondaName("pytorch", "same")
    assert set(shipped.conda.cuda) <= {toolkit.version for toolkit in shipped.toolkits}
    assert set(shipped.conda.compiled_with) <= set(shipped.packages)


def test_packages_that_complete_a_toolkit_are_of_its_parts(shipped: Facts) -> None:
    completing = [source for source in shipped.toolkit_sources if source.kind == "parts"]
    versions = [version for source in completing for version in source.versions]
    assert versions[0] == "11.7"
    assert len(versions) == len(set(versions)), "each toolkit has one list"
    part_packages = {part.package for part in shipped.toolkit_parts}
    for source in completing:
        (version,) = source.versions
        suffix = f"-cu{version[:2]}" if Version(version) < Version("13") else ""
        names = [Requirement(line).name for line in source.packages]
        assert {name.removesuffix(suffix) for name in names} <= part_packages, version
        assert all(name.endswith(suffix) for name in names)
        assert all(str(Requirement(line).specifier).startswith("==") for line in source.packages)
    assert all(part.headers for part in shipped.toolkit_parts)


def test_every_toolkit_that_can_be_installed_is_described(shipped: Facts) -> None:
    described = {toolkit.version for toolkit in shipped.toolkits}
    for source in shipped.toolkit_sources:
        assert set(source.arches) <= set(shipped.arches)
        if source.kind == "toolkit":
            assert source.versions
            assert set(source.versions) <= described, f"{source.provider}: toolkits.toml lacks some"
    assert {source.provider for source in shipped.toolkit_sources} <= set(PROVIDERS)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('date = "2025-01-29"', 'date = "2025-01"', "'date' is '2025-01', expected a date"),
        (
            '[torch.cuda.official."12.6"]',
            '[torch.cuda.official."12.x"]',
            "'12.x' is not a version of CUDA",
        ),
        ("nvidia-nvtx-cu12==12", "nvidia-nvtx-cu12 12", "which is not a requirement"),
    ],
)
def test_dates_toolkits_and_requirements_of_a_release_are_checked(
    old: str, new: str, message: str, tmp_path: Path
) -> None:
    shutil.copytree(Path(__file__).parents[2] / "build_configs", tmp_path / "configs")
    path = tmp_path / "configs/releases/2.6.0.toml"
    path.write_text(path.read_text(encoding="utf-8").replace(old, new), encoding="utf-8")
    assert message in problems(tmp_path / "configs")


def test_the_version_of_a_required_library_is_read_without_its_marker(configs: Path) -> None:
    requirement = "nvidia-nvshmem-cu12==3.4.5; platform_system == 'Linux'"
    write(
        configs,
        "releases/1.0.0.toml",
        'capabilities = "3.7;7.0"',
        f'requires = ["{requirement}", "nvidia-cusparselt-cu12>=0.6"]',
    )
    release = facts_reader.read_facts(configs).releases["base"][0]
    official = release.cuda.official["10.2"]
    assert official.nvshmem == "3.4.5"
    assert official.cusparselt is None


def test_the_name_of_a_required_library_may_have_any_spelling(configs: Path) -> None:
    write(
        configs,
        "releases/1.0.0.toml",
        'capabilities = "3.7;7.0"',
        'requires = ["Nvidia_cuSPARSELt_cu12==0.6.3"]',
    )
    release = facts_reader.read_facts(configs).releases["base"][0]
    assert release.cuda.official["10.2"].cusparselt == "0.6.3"


def test_a_dependent_without_the_base_in_its_file_is_refused(configs: Path) -> None:
    """No dependent may stand in for the base package, and give its version to the next."""
    path = configs / "releases/1.0.0.toml"
    text = path.read_text(encoding="utf-8")
    path.write_text(text[text.index("[addon]") :], encoding="utf-8")
    assert "1.0.0.toml: it has [addon], but not [base]" in problems(configs)


def test_a_package_without_a_python_of_its_torch_is_impossible(configs: Path) -> None:
    facts = declared(configs, ONE.replace('torch = ">=1"', 'torch = ">=1"\n    python = ">=3.20"'))
    with refused("impossible-build"):
        cell_lookup.find_cell(
            facts, "scatter-3.10-cpu", "x86_64", find_release(facts, "base", "v1.0.0")
        )
