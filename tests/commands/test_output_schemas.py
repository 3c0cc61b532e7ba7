"""The outputs of --json have the keys that docs/reference/schemas/ names, and no others.

Files beside wheels and sources are compared in the tests of what writes them.
"""

import inspect
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import tasks
from tests.support import documented_wheels, documents
from tests.support.commands import InvokeHere
from tests.support.index_server import Index, serving, wheel
from tests.support.sampled import THIS
from tools.json_schema import schema_files
from tools.output_schemas import output_schemas
from torchmill.host.native import native_arch

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "docs" / "reference"
HOSTS = ROOT / "tests" / "golden" / "hosts"
HOST = f"--host={HOSTS / 'rtx3090.toml'}"
LOG = """\
[1/2] g++ -c a.cpp
a.cpp:3:10: fatal error: zlib.h: No such file or directory
compilation terminated.
ninja: build stopped: subcommand failed.
"""
# By task, lines whose outputs have all keys between them.
LINES = {
    "matrix": [
        "--tag=v1.13.1 --package=torch",
        "--tag=v2.8.0 --package=torch-scatter --arch=x86_64",
    ],
    "explain": [
        f"wheel-3.10-cpu --tag=v1.13.1 {HOST}",
        f"wheel-3.12-cu113 --tag=v2.4.1 {HOST}",
        f"wheel-3.12-cu121 --tag=v2.4.1 {HOST}",
    ],
    "plan": [
        f"wheel-3.10-cu117 --tag=v1.13.1 --arch-list=8.6 {HOST}",
        f"conda-3.10-cpu --tag=v1.13.1 {HOST}",
        f"wheel-3.12-cpu --tag=v2.4.1 --host={HOSTS / 'm1-container.toml'}",
        f"wheel-3.12-cpu --tag=v2.4.1 --host={HOSTS / 'macbook.toml'}",
        "wheel-3.12-cpu-aarch64 --tag=v2.4.1",
    ],
    "build": ["torch-scatter --new-torch --dry-run", "--new-torch --dry-run --python=3.6"],
    "arch": [f"'8.0;8.6' --cuda=11.8 --tag=v2.1.0 {HOST}", f"--gpu='RTX 3090' {HOST}"],
    "doctor": [HOST, f"wheel-3.10-cu117 --tag=v1.13.1 {HOST}"],
    "jobs": ["--tag=v1.13.1", f"wheel-3.10-cpu --tag=v1.13.1 {HOST}"],
    "shards": [f"wheel-3.10-cpu --tag=v1.13.1 {HOST}"],
    "diagnose": ["build.log", "unknown.log", "empty.log", "reasons.log"],
    "verify": [""],
    "index": [""],
    "publish": ["--to=there", "--to=there --keep=1"],
    "status": [""],
    "clean": ["--kind=logs --dry-run", "--kind=logs"],
    "toolkit": ["--list"],
}
# Keys that these lines do not show: except for `channel`, the tests of the commands compare such
# outputs.
UNSEEN = {
    "clean": ("/kept/",),  # what is in use
    "build": ("/index",),  # of a run that is not dry
    # --conda, which would need an index of a channel, and --variants
    "index": ("/channel", "/wheel_variants"),
    "jobs": ("/memory_of_one_process/",),  # ulimit -v
    "plan": ("/container/",),  # an engine of containers
    "toolkit": ("/kept/", "/lacks"),  # what was downloaded
}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Give a home with wheels and logs, which is the folder of the process too, and an index."""
    monkeypatch.chdir(tmp_path)
    # An index with a torch that is newer than the facts.
    index = Index()
    tag = f"cp{THIS.replace('.', '')}-cp{THIS.replace('.', '')}-manylinux_2_28_{native_arch()}"
    index.add(f"torch-99.0.0-{tag}.whl", wheel("torch", "99.0.0"))
    for version in ("1.12.1+cpu", "1.13.1+cpu"):
        documented_wheels.built(tmp_path / "dist", version)
    (tmp_path / "build.log").write_text(LOG, encoding="utf-8")
    (tmp_path / "unknown.log").write_text("error: the flux capacitor is not charged\n", "utf-8")
    (tmp_path / "reasons.log").write_text(
        "nvcc fatal   : Unsupported gpu architecture 'compute_75'\n", encoding="utf-8"
    )
    (tmp_path / "empty.log").write_text("all is well\n", encoding="utf-8")
    logs = tmp_path / ".torchmill" / "logs"
    logs.mkdir(parents=True)
    (logs / "v1.0.0-wheel-3.10-cpu.log").write_text("log", encoding="utf-8")
    with serving(index):
        monkeypatch.setenv("PIP_INDEX_URL", index.url)
        yield tmp_path


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize("task", LINES)
def test_an_output_has_exactly_the_keys_of_its_schema(task: str, invoke: InvokeHere) -> None:
    schema = output_schemas()[task]
    unseen = set(documents.keys_of_schema(schema))
    for line in LINES[task]:
        _, output, errors = invoke(f"{task} {line} --json")
        assert output, errors
        document = json.loads(output)
        documents.assert_fits(document, task)
        unseen -= set(documents.keys_of_document(schema, document))
    assert {key for key in unseen if not key.startswith(UNSEEN.get(task, ()))} == set()


def test_an_error_has_no_other_keys_than_its_schema(invoke: InvokeHere) -> None:
    _, output, _ = invoke("explain wheel-3.10-cpuu --json")
    documents.assert_fits(json.loads(output), "error")


def test_the_reference_links_every_schema_and_no_other() -> None:
    page = (REFERENCE / "json.md").read_text("utf-8")
    linked = re.findall(r"\[(\w+)\]\(schemas/\1\.schema\.json\)", page)
    assert sorted(linked) == sorted(output_schemas())


def test_the_page_of_the_manifest_names_the_keys_of_its_schema() -> None:
    page = (REFERENCE / "manifest.md").read_text("utf-8")
    documented: list[str] = []
    for names in re.findall(r"^\| (`.*?) \|", page, flags=re.MULTILINE):
        documented += re.findall(r"`(\w+)`", names)
    assert sorted(documented) == sorted(output_schemas()["manifest"]["properties"])


def test_every_task_with_json_has_a_schema() -> None:
    with_json = set()
    for name, task in tasks.namespace.tasks.items():
        if "json" in inspect.signature(task.body).parameters:
            with_json.add(name)
    assert with_json == set(LINES)


def test_the_written_schemas_are_up_to_date() -> None:
    folder = REFERENCE / "schemas"
    written = {path.name: path.read_text("utf-8") for path in folder.iterdir()}
    assert written == schema_files(output_schemas()), "stale: run `invoke facts --table`"
