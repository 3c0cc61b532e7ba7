"""The facts about images: read strictly, and those we ship hold together."""

from pathlib import Path

from torchmill.config import facts_reader

ROOT = Path(__file__).parents[2]
ONE = """
[[base]]
role = "system"
image = "docker.io/library/debian"
tag = "bookworm-slim"
arches = ["x86_64"]
distribution = "debian"
version = "12"
manager = "apt"
source = "test"
"""


def _read(tmp_path: Path, text: str) -> tuple[object, list[str]]:
    file, problems = tmp_path / "images.toml", list[str]()
    file.write_text(text)
    return facts_reader.read_images(file, problems), problems


def test_without_the_file_nothing_is_known(tmp_path: Path) -> None:
    assert facts_reader.read_images(tmp_path / "images.toml", []).bases == ()


def test_what_is_wrong_is_told_with_its_place(tmp_path: Path) -> None:
    wrong = (
        ONE.replace('"apt"', '"pacman"').replace('"system"', '"cuda"') + 'digest = "sha256:12"\nsice = 1\n'
    )
    _, problems = _read(tmp_path, wrong + '[uv]\nversion = "new"\nsource = "x"\n')
    told = "\n".join(problems)
    for part in (
        "'manager' is 'pacman', expected one of apt, dnf, yum",
        "'digest' is 'sha256:12', expected sha256: and 64 hexadecimal digits",
        "key 'toolkit' is missing",
        "'sice'",
        "'new' is no version",
    ):
        assert part in told


def test_ours_are_whole() -> None:
    ours = facts_reader.read_facts(ROOT / "build_configs")
    assert {one.role for one in ours.images.bases} == set(facts_reader.ROLES)
    named = [(one.role, one.named, arch) for one in ours.images.bases for arch in one.arches]
    assert len(named) == len(set(named))
    toolkits = {one.toolkit for one in ours.images.bases if one.toolkit}
    assert toolkits <= {one.version for one in ours.toolkits}
    for one in ours.images.bases:
        assert set(one.arches) <= {"x86_64", "aarch64"}
        assert one.image.count("/") >= 2, "podman and buildah want the registry in the name"
        assert "{major}" in one.compiler or not one.compilers
