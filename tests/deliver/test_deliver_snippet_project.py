"""A snippet put into a project's own pyproject.toml."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from tests.support.refusals import refused
from torchmill.deliver.snippet.project_file import declared_packages, edit_project, workspace_root

GOLDEN = Path(__file__).parents[1] / "golden" / "snippets"
PROJECT = """\
# a project of mine
[build-system]
requires = ["hatchling"]  # the back end

[project]
name = "mine"  # a name
version = "1"
requires-python = ">=3.9.2"  # as on the cluster
dependencies = [
    "requests>=2",  # http
    # what it is all about
    "Torch>=2",
    "numpy>=1.20",
]

[tool.uv]
dev-dependencies = ["pytest"]  # tests

[tool.uv.sources]
torch = { index = "pytorch" }
other = { git = "https://example.org/other" }

[[tool.uv.index]]
name = "pytorch"
url = "https://download.pytorch.org/whl/cpu"
explicit = true

[tool.mypy]
strict = true  # always
"""
CASES = [
    tuple(path.name.split(".")[:2])
    for path in sorted(GOLDEN.glob("*.toml"))
    if ".pixi." not in path.name
]


def snippet_of(case: str, tool: str) -> str:
    return (GOLDEN / f"{case}.{tool}.toml").read_text()


def put(folder: Path, text: str, case: str, tool: str, extra: str = "") -> tuple[str, str]:
    """Return a project's file after a snippet was put into it, and the output."""
    file = folder / "pyproject.toml"
    file.write_bytes(text.encode())
    output = edit_project(file, snippet_of(case, tool), tool, extra)
    return file.read_bytes().decode(), output


def comments_of(text: str) -> list[str]:
    return [line.rpartition("#")[2] for line in text.splitlines() if " #" in f" {line}"]


@pytest.mark.parametrize(("case", "tool"), CASES)
def test_comments_stay_and_a_second_edit_changes_nothing(
    tmp_path: Path, case: str, tool: str
) -> None:
    edited, _ = put(tmp_path, PROJECT, case, tool)
    assert comments_of(edited) == comments_of(PROJECT)
    again, output = put(tmp_path, edited, case, tool)
    assert again == edited
    assert output.endswith("has all of it already")
    declared = tomllib.loads(snippet_of(case, tool))["project"]
    project = tomllib.loads(edited)["project"]
    for name, lines in declared.get("optional-dependencies", {}).items():
        assert project["optional-dependencies"][name] == lines
    assert {*declared.get("dependencies", [])} - {"numpy<2"} <= {*project["dependencies"]}
    assert "Torch>=2" not in project["dependencies"]


def test_replaced_declarations_are_reported(tmp_path: Path) -> None:
    edited, output = put(tmp_path, PROJECT, "macos_of_ours", "uv")
    assert "requires-python was >=3.9.2, and is now >=3.10,<3.11" in output
    assert "Torch>=2 was replaced" in output
    assert "numpy>=1.20 is now numpy<2,>=1.20: the wheels are compiled against NumPy 1" in output
    assert 'tool.uv.sources.torch was { index = "pytorch" }' in output
    uv = tomllib.loads(edited)["tool"]["uv"]
    assert uv["sources"] == {
        "torch": {"index": "torchmill"},
        "other": {"git": "https://example.org/other"},
    }
    assert [index["name"] for index in uv["index"]] == ["pytorch", "torchmill"]
    assert uv["dev-dependencies"] == ["pytest"]


@pytest.mark.parametrize(
    ("line", "stays"),
    [
        ("numpy==1.26.4", True),
        ("numpy~=1.24", True),
        ("numpy<1.25", True),
        ("numpy==1.*", True),
        ("numpy==2.0.0", False),
        ("numpy>=1.20", False),
        ("numpy", False),
        ("numpy<3", False),
    ],
)
def test_the_bound_of_numpy_is_added_only_if_a_line_admits_more(
    tmp_path: Path, line: str, stays: bool
) -> None:
    edited, output = put(tmp_path, PROJECT.replace("numpy>=1.20", line), "macos_of_ours", "uv")
    lines = tomllib.loads(edited)["project"]["dependencies"]
    assert (line in lines) == stays
    assert (f"{line} is now" in output) == (not stays)


def test_excluded_platforms_are_reported(tmp_path: Path) -> None:
    _, output = put(tmp_path, PROJECT, "differs_by_machine", "uv")
    assert "uv now locks for" in output
    assert "only, which have wheels: others cannot install the project" in output


def test_settings_of_a_workspace_are_not_written_into_a_member(tmp_path: Path) -> None:
    """Uv reads them in the root: https://docs.astral.sh/uv/concepts/projects/workspaces/."""
    root = tmp_path / "pyproject.toml"
    root.write_text('[tool.uv.workspace]\nmembers = ["packages/*"]\nexclude = ["packages/alone"]\n')
    for name, is_member in (("mine", True), ("alone", False)):
        folder = tmp_path / "packages" / name
        folder.mkdir(parents=True)
        edited, output = put(folder, PROJECT, "differs_by_machine", "uv")
        assert ("environments" in tomllib.loads(edited)["tool"]["uv"]) is not is_member
        assert (f"add to [tool.uv] of {root}: environments = [" in output) is is_member


@pytest.mark.parametrize(
    ("member", "exclude", "folder", "is_member"),
    [
        ("packages/*", "", "packages/x", True),
        ("packages/?", "", "packages/x", True),
        ("./packages/*", "", "packages/x", True),
        ("packages/*", "", "elsewhere/packages/x", False),
        ("packages/*", "", "packages/a/b", False),
        ("packages/**", "", "packages/a/b", True),
        ("packages/**", "", "packages", False),
        ("**/x", "", "a/b/x", True),
        ("**/x", "", "x", True),
        ("packages/**", "packages/*", "packages/a/b", False),
    ],
)
def test_a_workspace_has_the_members_that_uv_finds(
    tmp_path: Path, member: str, exclude: str, folder: str, is_member: bool
) -> None:
    """As uv 0.13 was found to do."""
    root = tmp_path / "pyproject.toml"
    root.write_text(
        f'[tool.uv.workspace]\nmembers = ["{member}"]\nexclude = ["{exclude}"]\n', encoding="utf-8"
    )
    project = tmp_path / folder / "pyproject.toml"
    assert workspace_root(project) == (root if is_member else None)


def test_declared_packages_are_those_of_all_lists(tmp_path: Path) -> None:
    file = tmp_path / "pyproject.toml"
    extras = '[project.optional-dependencies]\ngpu = ["TorchVision"]\n'
    groups = '[dependency-groups]\na = ["six", {include-group = "b"}]\n'
    file.write_text(f"{PROJECT}\n{extras}{groups}")
    assert declared_packages(file) == ["requests", "torch", "numpy", "torchvision", "six"]
    for text in ("no TOML", "project = 1", "[project]\noptional-dependencies = []", "\xff"):
        file.write_text(text, encoding="latin-1")
        assert declared_packages(file) == []
    assert declared_packages(tmp_path / "absent") == []


def test_a_comment_behind_a_replaced_line_stays_with_its_package(tmp_path: Path) -> None:
    text = PROJECT.replace(
        '"Torch>=2",',
        '"Torch>=2",  # CVE: never below 2\n    # pinned by ops\n    "six==1",  # stays',
    )
    edited, output = put(tmp_path, text, "one_pin", "uv")
    assert "Torch>=2 was replaced" in output
    lines = edited.splitlines()
    (position,) = [i for i, line in enumerate(lines) if line.endswith("# CVE: never below 2")]
    assert lines[position].strip().startswith('"torch==')
    assert lines[position + 1] == "    # pinned by ops"
    assert lines[position + 2] == '    "six==1",  # stays'


def test_pins_in_other_lists_are_reported(tmp_path: Path) -> None:
    extras = '[project.optional-dependencies]\ngpu = ["torch>9"]\n'
    groups = '[dependency-groups]\ndev = ["torch==0.5", {include-group = "x"}]\nx = []\n'
    edited, output = put(tmp_path, f"{PROJECT}\n{extras}{groups}", "one_pin", "uv")
    assert "torch>9 of gpu stays" in output
    assert "torch==0.5 of dev stays" in output
    assert "torch>9" in edited


@pytest.mark.parametrize(("field", "extra"), [("dependencies", ""), ("requires-python", "gpu")])
def test_a_dynamic_field_is_not_written(tmp_path: Path, field: str, extra: str) -> None:
    text = f'[project]\nname = "x"\nversion = "0"\ndynamic = ["{field}"]\n'
    with refused("dynamic-field"):
        put(tmp_path, text, "one_pin", "uv", extra)
    assert (tmp_path / "pyproject.toml").read_text() == text


def test_an_extra_can_be_written_if_dependencies_are_dynamic(tmp_path: Path) -> None:
    text = '[project]\nname = "x"\nversion = "0"\ndynamic = ["dependencies"]\n'
    edited, _ = put(tmp_path, text, "one_pin", "uv", "gpu")
    assert "torch" in edited


def torch_pins(text: str) -> list[str]:
    dependencies = tomllib.loads(text)["project"]["dependencies"]
    return [line for line in dependencies if line.startswith("torch==")]


def test_an_earlier_snippet_is_replaced(tmp_path: Path) -> None:
    first, _ = put(tmp_path, PROJECT, "differs_by_machine", "uv")
    moved = first.replace("https://wheels.example.org", "https://old.example.org")
    second, output = put(tmp_path, moved, "one_pin", "uv")
    assert "url of torchmill in tool.uv.index was" in output
    assert torch_pins(second) == torch_pins(snippet_of("one_pin", "uv"))
    third, output = put(tmp_path, second, "by_address", "uv")
    assert "tool.uv.sources.torch was replaced" in output
    assert "torch" not in tomllib.loads(third)["tool"]["uv"]["sources"]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (">=3.9", ">=3.9,<3.11"),
        (">=3.9.2,!=3.10.1", ">=3.9.2,<3.11,!=3.10.1"),
        ("==3.10.*", "==3.10.*"),
        (">=3.10,<4", ">=3.10,<3.11"),
        ("~=3.9", "~=3.9,<3.11"),
        ("==3.10.12", "==3.10.12"),
        (">=3.10.4,<=3.10.9", ">=3.10.4,<=3.10.9"),
    ],
)
def test_only_pythons_without_wheels_are_excluded(tmp_path: Path, before: str, after: str) -> None:
    text = PROJECT.replace(">=3.9.2", before)
    edited, output = put(tmp_path, text, "by_address", "pdm")
    assert tomllib.loads(edited)["project"]["requires-python"] == after
    assert ("requires-python was" in output) == (before != after)


def test_a_project_without_requires_python_gets_that_of_the_wheels(tmp_path: Path) -> None:
    edited, _ = put(tmp_path, '[project]\nname = "x"\nversion = "1"\n', "by_address", "poetry")
    data = tomllib.loads(edited)
    assert data["project"]["requires-python"] == ">=3.9,<3.11"
    assert "numpy<2" in data["project"]["dependencies"]
    settings = data.get("tool", {}).get("poetry", {})
    assert "package-mode" not in settings, "the project may be a package"


@pytest.mark.parametrize(
    ("line", "stays"),
    [
        ('requires-python = ">=3.9"', False),
        ("", False),
        ('requires-python = "==3.10.*"', True),
    ],
)
def test_a_wider_python_in_poetrys_table_is_removed(tmp_path: Path, line: str, stays: bool) -> None:
    project = f'[project]\nname = "x"\nversion = "1"\n{line}\n'
    poetry = '[tool.poetry.dependencies]\npython = "^3.9"\nsix = "*"\n'
    edited, output = put(tmp_path, project + poetry, "one_pin", "poetry")
    dependencies = tomllib.loads(edited)["tool"]["poetry"]["dependencies"]
    assert ("python" in dependencies) == stays
    assert "six" in dependencies
    assert ("tool.poetry.dependencies.python was replaced: ^3.9" in output) is not stays


def test_dependencies_can_become_an_extra(tmp_path: Path) -> None:
    edited, _ = put(tmp_path, PROJECT, "macos_of_ours", "uv", "gpu")
    project = tomllib.loads(edited)["project"]
    assert project["dependencies"] == ["requests>=2", "numpy>=1.20"]
    assert project["optional-dependencies"]["gpu"][0].startswith("torch==1.13.1+cpu")
    assert put(tmp_path, edited, "macos_of_ours", "uv", "gpu")[0] == edited


def test_an_extra_is_found_in_another_spelling(tmp_path: Path) -> None:
    text = f'{PROJECT}\n[project.optional-dependencies]\nMy_GPU = ["torch>=1"]\n'
    edited, output = put(tmp_path, text, "one_pin", "uv", "my-gpu")
    extras = tomllib.loads(edited)["project"]["optional-dependencies"]
    assert list(extras) == ["My_GPU"], "uv refuses two names that are normalized to one"
    assert extras["My_GPU"][0].startswith("torch==")
    assert "of My_GPU stays" not in output


def test_line_endings_and_permissions_stay(tmp_path: Path) -> None:
    real = tmp_path / "real.toml"
    text = f"{PROJECT}\n[tool.black]\nexclude = '''\n/(\n  build\n)/\n'''\n"
    real.write_bytes(text.replace("\n", "\r\n").encode())
    real.chmod(0o640)
    link = tmp_path / "pyproject.toml"
    link.symlink_to(real)
    edit_project(link, snippet_of("one_pin", "uv"), "uv", "")
    content = real.read_bytes()
    assert content.count(b"\n") == content.count(b"\r\n")
    assert b"torchmill" in content
    assert link.is_symlink()
    assert real.stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"[project\n", "invalid-project"),
        (b"\xff\xfe", "invalid-project"),
        (b'[project]\nname = "x"\nname = "y"\n', "invalid-project"),
        (b"[tool.ruff]\nline-length = 100\n", "invalid-project"),
        (b'[tool.poetry]\nname = "x"\n', "invalid-project"),
        (b"project = 3\n", "invalid-project"),
        (b'[project]\nrequires-python = ">>3"\n', "invalid-project"),
        (b'[project]\nrequires-python = ">=3.12"\n', "no-common-python"),
        (b'[project]\ndependencies = "torch"\n', "invalid-project"),
        (b"tool = 3\n[project]\n", "invalid-project"),
        (b"tool = {}\n[project]\n", "invalid-project"),
        (b'[project]\n[tool.uv]\nindex = [{name = "x", url = "https://x"}]\n', "scattered-tables"),
        (b'[project]\ndependencies = ["torch"]\n[[tool.uv.index]]\nurl = "https://x"\n', ""),
        (b'[project]\ndependencies = [1, "torch"]\n', ""),
        (
            (
                b'[project]\ndependencies = ["torch"]\n'
                b'[[tool.uv.index]]\nname = "torchmill"\nexplicit = false\n'
            ),
            "",
        ),
    ],
)
def test_a_file_that_cannot_be_edited_is_refused_and_stays(
    tmp_path: Path, content: bytes, code: str
) -> None:
    file = tmp_path / "pyproject.toml"
    file.write_bytes(content)
    snippet = snippet_of("one_pin", "uv")
    if code:
        with refused(code) as caught:
            edit_project(file, snippet, "uv", "")
        assert file.read_bytes() == content
        assert " init`" not in str(caught.value), (
            "uv and Poetry refuse to make a project that exists"
        )
    else:
        assert "torch was replaced" in edit_project(file, snippet, "uv", "")
    assert [path.name for path in tmp_path.iterdir()] == ["pyproject.toml"]


def test_a_missing_or_read_only_file_is_refused(tmp_path: Path) -> None:
    snippet = snippet_of("one_pin", "uv")
    for path in (tmp_path / "absent.toml", tmp_path):
        with refused("no-project-file"):
            edit_project(path, snippet, "uv", "")
    file = tmp_path / "pyproject.toml"
    file.write_text(PROJECT)
    file.chmod(0o444)
    with refused("read-only-project"):
        edit_project(file, snippet, "uv", "")
    assert file.read_text() == PROJECT
