"""A package by one file: the releases that it declares, and what can be wrong with them."""

from pathlib import Path

import pytest

from tests.support.declared import ONE, declared
from torchmill.config import cell_lookup, matrix
from torchmill.config.model import Host, Options
from torchmill.core.errors import ConfigError
from torchmill.plan import build_plan

HOST = Host(arch="x86_64", system="linux", cores=4, memory=2**33, glibc="2.36")


def test_with_each_torch_goes_the_newest_release_that_takes_it(configs: Path) -> None:
    known = declared(configs)
    old, new = known.releases["tiny-scatter"]
    assert [(one.version, one.torch, one.tag) for one in (old, new)] == [
        ("1.0", "1.0.0", "v1.0"),
        ("1.10", "2.0.0", "v1.10"),
    ]
    base = known.releases["base"]
    assert (old.pythons, old.arches, old.cuda) == (base[0].pythons, base[0].arches, base[0].cuda)
    assert (new.pythons, new.arches, str(new.cuda)) == (("3.10",), ("x86_64",), ">=12")
    assert (old.sha256, new.sha256) == (None, "abc")
    assert old.cuda_official == base[0].cuda_official


def test_it_is_built_like_any_other(configs: Path) -> None:
    old = configs / "releases/1.0.0.toml"
    old.write_text(old.read_text().replace("[base.cuda]", '[base.cuda]\npypi = "11.8"', 1))
    known = declared(configs)
    first = known.releases["base"][0]
    cell = cell_lookup.find_cell(known, "scatter-3.10-cu118", "x86_64", first)
    computed = build_plan.compute_plan(known, cell, HOST, Options())
    assert computed.wheel == "tiny_scatter-1.0+cu118.base1.0.0-cp310-cp310-manylinux_2_36_x86_64.whl"
    assert computed.torch == "base==1.0.0+cu118"
    official = build_plan.compute_plan(known, cell, HOST, Options(torch="PyPI"))
    assert "base===1.0.0" in official.requirements
    assert build_plan.compute_plan(known, cell, HOST, Options(label="none")).version == "1.0"
    (partner,) = matrix.partner_releases(known, first, ["scatter"])
    assert partner.version == "1.0"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('pypi = "tiny-scatter"', "", "tiny-scatter.toml: neither 'repository' nor 'pypi' says where"),
        (
            'after = "base"',
            "",
            r"tiny-scatter.toml: it has [[release]], which pair with a release of 'after'",
        ),
        (
            'after = "base"',
            'after = "bass"',
            "tiny-scatter.toml: 'after' is 'bass'; packages/ has addon, base",
        ),
        ('session = "scatter"', 'session = "wheel"', "'session' is 'wheel', which is that of base"),
        ('version = "1.0"', 'version = "one"', "release 1: 'one' is no version"),
        ('torch = ">=1"', 'torch = "one"', "release 1: 'torch' is 'one', which is no version specifier"),
        ('torch = ">=1"', "", "release 1: 'torch' is missing"),
        ('torch = ">=2"', 'torch = ">=3"', "release 1.10: base '>=3' leaves it no release of base"),
        ('torch = ">=1"', 'torch = ">=2"', "release 1.0: base '>=2' leaves it no release of base"),
        ('"import tiny_scatter"', '"import tiny scatter"', "'smoke', line 1: invalid syntax"),
        ('cuda = ">=12"', 'cudda = ">=12"', "release 2: unknown key 'cudda'; did you mean 'cuda'?"),
    ],
)
def test_each_mistake_is_told_with_its_place(configs: Path, old: str, new: str, message: str) -> None:
    assert old in ONE
    with pytest.raises(ConfigError) as error:
        declared(configs, ONE.replace(old, new, 1))
    assert message in str(error.value)


def test_a_release_is_said_in_one_place(configs: Path) -> None:
    with (configs / "releases/1.0.0.toml").open("a", encoding="utf-8") as file:
        file.write('[tiny-scatter]\nversion = "0.9"\nsource = "test"\n')
    with pytest.raises(ConfigError, match=r"tiny-scatter 0\.9 stands in releases/ too; say it in one place"):
        declared(configs)
