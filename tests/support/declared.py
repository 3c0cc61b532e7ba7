"""A package that one file declares, its releases in it."""

from pathlib import Path
from textwrap import dedent

from torchmill.config import facts_reader
from torchmill.config.facts import Facts

ONE = """
    name = "tiny-scatter"
    session = "scatter"
    after = "base"
    pypi = "tiny-scatter"
    import_name = "tiny_scatter"
    memory_per_job = "1 GiB"
    disk = "1 GiB"
    smoke = ["import tiny_scatter", "assert tiny_scatter.add(1, 1) == 2"]

    [[release]]
    version = "1.0"
    torch = ">=1"
    source = "test"

    [[release]]
    version = "1.10"
    torch = ">=2"
    python = "<3.13"
    arches = ["x86_64", "arm64"]
    cuda = ">=12"
    sha256 = "abc"
    source = "test"
"""


def declared(configs: Path, text: str = ONE) -> Facts:
    """Put the package beside the others of a small build_configs, and return what is known then."""
    (configs / "packages/tiny-scatter.toml").write_text(dedent(text), encoding="utf-8")
    return facts_reader.read_facts(configs)
