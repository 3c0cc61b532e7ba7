"""`invoke verify`: a sound wheel, and each way in which one of its papers may be wrong."""

import hashlib
import json
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from press_support import written_wheels

from tests.support import commands, told_wheels
from tests.support.refusals import refused, without_code
from torchmill.commands import verify
from torchmill.core import formats
from torchmill.core.errors import DeliveryError
from torchmill.core.paths import Layout
from torchmill.deliver import agreement
from torchmill.deliver.differences import MAX_DIFFERENCES, Reference, document_differences
from torchmill.wheel import dist_files, sbom


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return told_wheels.built(tmp_path_factory.mktemp("sound"))


@pytest.fixture
def wheel(sound: Path, tmp_path: Path) -> Path:
    """Return a copy that a test may spoil."""
    shutil.copytree(sound.parent, tmp_path / "dist")
    return tmp_path / "dist" / sound.name


def edit(file: Path, change: Callable[[dict[str, Any]], object]) -> None:
    said = json.loads(file.read_text("utf-8"))
    change(said)
    file.write_text(json.dumps(said), "utf-8")


def statement_of(wheel: Path) -> Path:
    return dist_files.document_path(wheel, dist_files.STATEMENT_SUFFIX)


def sbom_of(wheel: Path) -> Path:
    return dist_files.document_path(wheel, dist_files.SBOM_SUFFIX)


def test_a_sound_wheel_passes_each_check(sound: Path) -> None:
    found = agreement.examine_wheel(sound)
    assert found.problems == ()
    names = ["wheel", "contents", "tags", "manifest", "statement", "SBOM", "inner SBOM"]
    assert [check.name for check in found.checks] == names
    found.require()


def dependency(kind: str) -> Callable[[dict[str, Any]], object]:
    """Return what gives the first dependency of a kind another digest."""

    def change(said: dict[str, Any]) -> None:
        every = said["predicate"]["buildDefinition"]["resolvedDependencies"]
        next(one for one in every if one["annotations"]["kind"] == kind)["digest"] = {
            "gitCommit": "0" * 40
        }

    return change


def component(reference: str, **said: Any) -> Callable[[dict[str, Any]], object]:
    def change(sbom: dict[str, Any]) -> None:
        next(one for one in sbom["components"] if one["bom-ref"] == reference).update(said)

    return change


Tampering = tuple[Callable[[Path], Path], Callable[[dict[str, Any]], object], str]
NOTHING = {"alg": "SHA-256", "content": "0" * 64}
LIBRARY = f"bundled library:{told_wheels.BUNDLED}"


TAMPERED: list[Tampering] = [
    (dist_files.manifest_path, lambda said: said.update(sha256="0" * 64), "manifest: says sha256"),
    (
        dist_files.manifest_path,
        lambda said: said.update(wheel="other.whl"),
        "manifest: says wheel 'other.whl'",
    ),
    (
        dist_files.manifest_path,
        lambda said: said.update(commit="0" * 40),
        f"[source tinytorch].digest.gitCommit is '{told_wheels.COMMIT}', the manifest says '{'0' * 40}'",
    ),
    (
        dist_files.manifest_path,
        lambda said: said.pop("key"),
        "manifest: cannot be understood (lacks 'key')",
    ),
    (
        dist_files.manifest_path,
        lambda said: said.update(bundled=3),
        "manifest: cannot be understood",
    ),
    (
        statement_of,
        dependency("source"),
        f"[source tinytorch].digest.gitCommit is '{'0' * 40}', the manifest says '{told_wheels.COMMIT}'",
    ),
    (
        statement_of,
        dependency("submodule"),
        "resolvedDependencies[submodule third_party/fmt].digest",
    ),
    (
        statement_of,
        lambda said: said["subject"][0]["digest"].update(sha256="0" * 64),
        f"[{told_wheels.WHEEL}].digest.sha256 is '{'0' * 64}', the manifest says",
    ),
    (
        statement_of,
        lambda said: said["predicate"]["runDetails"]["builder"].update(id="https://evil"),
        "statement: predicate.runDetails.builder.id is 'https://evil', the manifest says 'urn:",
    ),
    (
        statement_of,
        lambda said: said.update(more=1),
        "statement: more is 1, which the manifest does not mention",
    ),
    (statement_of, lambda said: said.update(predicateType="https://x"), "is not SLSA 1 provenance"),
    (statement_of, lambda said: said.update(predicate=[]), "statement: has the buildType None"),
    (
        sbom_of,
        component(LIBRARY, hashes=[NOTHING]),
        f"components[{LIBRARY}].hashes[SHA-256].content is '0",
    ),
    (
        sbom_of,
        component("requirement:cmake==3.27.9", version="1"),
        "SBOM: components[requirement:cmake==3.27.9].version is '1', the manifest says '3.27.9'",
    ),
    (sbom_of, lambda said: said["components"].clear(), "SBOM: components[bundled library"),
    (
        sbom_of,
        lambda said: said["components"].append(said["components"][0]),
        "SBOM: components has 16 entries, the manifest says 15",
    ),
    (
        sbom_of,
        lambda said: said["dependencies"].pop(0),
        f"SBOM: dependencies[{LIBRARY}] is missing, the",
    ),
    (sbom_of, lambda said: said.update(components=7), "SBOM: components is 7, the manifest says ["),
    (sbom_of, lambda said: said.update(metadata={}), "SBOM: metadata.component is missing"),
    (
        sbom_of,
        lambda said: said["components"][0].update(properties=7),
        "].properties is 7, the manifest",
    ),
    (sbom_of, lambda said: said.update(bomFormat="SPDX"), "SBOM: is not a CycloneDX document"),
]


@pytest.mark.parametrize(("file", "change", "problem"), TAMPERED)
def test_what_is_wrong_is_named(
    wheel: Path,
    file: Callable[[Path], Path],
    change: Callable[[dict[str, Any]], object],
    problem: str,
) -> None:
    edit(file(wheel), change)
    found = agreement.examine_wheel(wheel)
    assert problem in "\n".join(found.problems)
    with refused("wheel-rejected"):
        found.require()


NO_PAPERS = {
    "empty": (b"", "it is empty"),
    "list": (b"[]", "it is not a JSON object"),
    "truncated": (b'{"a": 1', "it is not JSON: Expecting"),
    "bytes": (b'{"\xff": 1}', "it is not UTF-8 text"),
    "twice": (b'{"a": 1, "a": 2}', "it says 'a' twice"),
    "deep": (b"[" * 100_000, "it is nested too deeply"),
}


@pytest.mark.parametrize("file", [dist_files.manifest_path, statement_of, sbom_of])
@pytest.mark.parametrize(("content", "said"), NO_PAPERS.values(), ids=NO_PAPERS)
def test_a_paper_that_is_none_is_named(
    wheel: Path, file: Callable[[Path], Path], content: bytes, said: str
) -> None:
    file(wheel).write_bytes(content)
    problems = agreement.examine_wheel(wheel).problems
    assert any(f"cannot be read ({said}" in problem for problem in problems), problems


def test_a_paper_of_another_program_is_named(wheel: Path) -> None:
    for file in (dist_files.manifest_path, statement_of, sbom_of):
        file(wheel).write_text('{"name": "my-project", "private": true}')
    found = {problem.partition(":")[0] for problem in agreement.examine_wheel(wheel).problems}
    assert found == {"manifest", "statement", "SBOM", "inner SBOM"}


@pytest.mark.parametrize(
    ("file", "change", "problem"),
    [
        (
            statement_of,
            lambda said: said["subject"][0]["digest"].update(sha256="0" * 64),
            f"subject[{told_wheels.WHEEL}].digest.sha256 is '{'0' * 64}', the wheel says",
        ),
        (
            statement_of,
            lambda said: said.pop("subject"),
            "statement: subject is None, the wheel says",
        ),
        (
            sbom_of,
            lambda said: said["metadata"]["component"].update(version="2"),
            "version is '2', the wheel",
        ),
        (
            sbom_of,
            component(LIBRARY, hashes=[NOTHING]),
            f"{told_wheels.BUNDLED} in the wheel is not the file",
        ),
        (
            sbom_of,
            lambda said: said["components"][0].update(properties=7),
            "SBOM: cannot be understood",
        ),
    ],
)
def test_without_a_manifest_papers_are_compared_with_the_wheel(
    wheel: Path,
    file: Callable[[Path], Path],
    change: Callable[[dict[str, Any]], object],
    problem: str,
) -> None:
    dist_files.manifest_path(wheel).unlink()
    edit(file(wheel), change)
    assert problem in "\n".join(agreement.examine_wheel(wheel).problems)


def with_inner(wheel: Path, change: Callable[[dict[str, Any]], object], *, honest: bool) -> None:
    """Change the SBOM in a wheel; RECORD and all papers follow, and where it is honest, its serial number."""
    with zipfile.ZipFile(wheel) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    name = next(one for one in members if one.endswith(sbom.INNER_PATH))
    said = json.loads(members[name])
    change(said)
    if honest:
        said["serialNumber"] = sbom.serial_number(said, None)
    told_wheels.add(members, name, json.dumps(said).encode())
    with zipfile.ZipFile(wheel, "w") as archive:
        for one, content in members.items():
            archive.writestr(one, content)
    told_wheels.write(wheel, told_wheels.manifest(wheel))


@pytest.mark.parametrize(
    ("change", "honest", "problem"),
    [
        (
            component("submodule:third_party/fmt", version="1"),
            True,
            "[submodule:third_party/fmt].version is '1', the ",
        ),
        (
            component(LIBRARY, hashes=[NOTHING]),
            True,
            f"{told_wheels.BUNDLED} in the wheel is not the file",
        ),
        (lambda said: said["components"].pop(0), True, "] is missing, the "),
        (component("submodule:third_party/fmt", licenses=[]), True, "licenses"),
        (component("submodule:third_party/fmt", licenses=[]), False, "serialNumber is 'urn:uuid:"),
        (
            lambda said: said["metadata"]["component"].update(version="2"),
            True,
            "version is '2', the wheel says",
        ),
        (lambda said: said.update(bomFormat="SPDX"), True, "is not a CycloneDX document"),
        (lambda said: said.update(components=7), True, "cannot be understood"),
    ],
)
def test_the_inner_sbom_agrees_with_the_wheel_and_with_what_is_beside_it(
    wheel: Path, change: Callable[[dict[str, Any]], object], honest: bool, problem: str
) -> None:
    with_inner(wheel, change, honest=honest)
    problems = agreement.examine_wheel(wheel).problems
    assert any(one.startswith("inner SBOM: ") and problem in one for one in problems), problems


def test_the_inner_sbom_is_the_same_wherever_the_source_was_fetched_from(wheel: Path) -> None:
    """A mirror is named in the papers beside the wheel alone."""
    told_wheels.write(
        wheel,
        told_wheels.manifest(wheel) | {"source": "https://mirror.example/pytorch/pytorch.git"},
    )
    assert "mirror.example" in sbom_of(wheel).read_text("utf-8")
    assert agreement.examine_wheel(wheel).problems == ()


def test_a_wheel_that_lacks_the_inner_sbom_of_its_manifest_is_named(tmp_path: Path) -> None:
    wheel = written_wheels.made(tmp_path)
    told_wheels.write(wheel, told_wheels.manifest(wheel) | {"bundled": []})
    assert agreement.examine_wheel(wheel).problems == (
        "inner SBOM: is missing: build the wheel again",
    )


def test_an_inner_sbom_that_was_damaged_is_named(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (member,) = [one for one in archive.infolist() if one.filename.endswith(sbom.INNER_PATH)]
    content = bytearray(wheel.read_bytes())
    content[member.header_offset + 30 + len(member.filename) + 9] ^= 1  # behind its header
    wheel.write_bytes(content)
    problems = agreement.examine_wheel(wheel).problems
    assert [one for one in problems if one.startswith("inner SBOM: cannot be understood (")], (
        problems
    )


def test_a_wheel_that_was_renamed_with_its_papers_is_named(wheel: Path) -> None:
    other = wheel.with_name(wheel.name.replace("py3-none-any", "py3-none-linux_x86_64"))
    for file in (wheel, *dist_files.companion_paths(wheel)[:3]):
        file.rename(file.with_name(file.name.replace(wheel.name, other.name)))
    problems = "\n".join(agreement.examine_wheel(other).problems)
    assert f"manifest: says wheel '{wheel.name}', the wheel is '{other.name}'" in problems
    assert f"subject[{wheel.name}] is" in problems


def test_a_hash_of_record_that_is_none_is_told_of_record_alone(tmp_path: Path) -> None:
    def spoil(members: dict[str, bytes]) -> None:
        record = next(name for name in members if name.endswith("/RECORD"))
        members[record] = members[record].replace(
            b"tinytorch/__init__.py,sha256=", b"tinytorch/__init__.py,sha256=a"
        )

    wheel = written_wheels.made(tmp_path, change=spoil)
    manifest = told_wheels.manifest(wheel) | {"bundled": [], "origins": {}}
    del manifest["licences"]  # nor is an SBOM in it
    told_wheels.write(wheel, manifest)
    (problem,) = agreement.examine_wheel(wheel).problems
    assert problem == "contents: tinytorch/__init__.py differs from its RECORD entry"


def test_another_wheel_under_the_name_fits_none_of_the_papers(wheel: Path) -> None:
    made = written_wheels.made(wheel.parent / "other", "tinytorch", "1.13.1+cu117", body="x = 1\n")
    made.replace(wheel)
    found = agreement.examine_wheel(wheel)
    assert {problem.partition(":")[0] for problem in found.problems} == {
        "manifest",
        "statement",
        "SBOM",
    }


def test_an_original_that_is_no_wheel_is_named(wheel: Path) -> None:
    original = wheel.with_name(wheel.name.replace("1.13.1", "1.13.0"))
    original.write_bytes(b"no archive")
    said = {
        "wheel": original.name,
        "version": "1.0",
        "sha256": hashlib.sha256(b"no archive").hexdigest(),
    }
    edit(dist_files.manifest_path(wheel), lambda manifest: manifest.update(original=said))
    assert "original: File is not a zip file" in agreement.examine_wheel(wheel).problems


@pytest.mark.parametrize("name", ["../x.whl", "", "..", 7])
def test_an_original_that_is_not_here_is_told(wheel: Path, name: object) -> None:
    """What it is called leads to no other folder, and what its tags are is not judged by them."""
    edit(
        dist_files.manifest_path(wheel),
        lambda manifest: manifest.update(original={"wheel": name, "sha256": "0"}),
    )
    checks = {one.name: one.text for one in agreement.examine_wheel(wheel).checks}
    assert "not compared" in checks["original"]
    assert "not judged" in checks["tags"]


def test_other_tags_than_those_of_the_original_are_named(wheel: Path) -> None:
    original = written_wheels.made(
        wheel.parent / "original", "tinytorch", "1.13.1+cu117", "cp39-cp39-win_amd64"
    )
    said = {"wheel": original.name, "sha256": hashlib.sha256(original.read_bytes()).hexdigest()}
    edit(dist_files.manifest_path(wheel), lambda manifest: manifest.update(original=said))
    assert any(
        "has other tags than" in one for one in agreement.examine_wheel(wheel, original).problems
    )


def test_what_others_wrote_takes_one_line() -> None:
    check = agreement.AgreementCheck("statement", "by urn:x\n  signature   of a key\x1b[8m")
    assert check.text.isprintable()


def test_a_wheel_that_is_damaged_says_so_and_nothing_else(wheel: Path) -> None:
    wheel.write_bytes(wheel.read_bytes()[:-30])
    (problem,) = agreement.examine_wheel(wheel).problems
    assert problem.startswith("wheel: ")


def test_contents_that_record_denies_are_named(tmp_path: Path) -> None:
    changed = written_wheels.made(
        tmp_path, change=lambda members: members.update({"tinytorch/__init__.py": b"evil()"})
    )
    assert any(
        "tinytorch/__init__.py" in problem for problem in agreement.examine_wheel(changed).problems
    )


def test_a_wheel_without_papers_is_sound_and_nobodys(tmp_path: Path) -> None:
    found = agreement.examine_wheel(written_wheels.made(tmp_path))
    assert (found.status, found.voucher, found.problems) == (agreement.SOUND, "", ())
    found.require()


def test_a_wheel_is_ours_by_its_manifest_or_else_by_its_statement(wheel: Path) -> None:
    assert (agreement.examine_wheel(wheel).status, agreement.examine_wheel(wheel).voucher) == (
        agreement.VOUCHED,
        "manifest",
    )
    dist_files.manifest_path(wheel).unlink()
    assert agreement.examine_wheel(wheel).voucher == "statement"
    statement_of(wheel).unlink()
    assert agreement.examine_wheel(wheel).status == agreement.SOUND, (
        "an SBOM says what it holds, and not who made it"
    )


def test_what_is_odd_about_a_wheel_of_others_is_a_note(tmp_path: Path) -> None:
    made = written_wheels.made(
        tmp_path, tag="py3-none-linux_x86_64", files={"start.pth": b"import x\n"}
    )
    wheel = made.rename(made.with_name(made.name.replace("linux_", "manylinux_2_28_")))
    found = agreement.examine_wheel(wheel)
    assert (found.status, found.problems) == (agreement.SOUND, ())
    notes = {check.name: check.notes for check in found.checks if check.notes}
    assert notes["contents"] == ("start.pth can run code whenever Python starts",)
    assert "WHEEL says py3-none-linux_x86_64" in notes["tags"][0]
    told = {check.name: check.text for check in found.checks}
    assert "; note: start.pth can run code" in told["contents"]


def test_a_manifest_of_a_newer_format_is_not_judged(wheel: Path) -> None:
    def renew(said: dict[str, Any]) -> None:
        said.update(format=formats.MANIFEST + 1, sha256="unlike anything that is known today")

    edit(dist_files.manifest_path(wheel), renew)
    found = agreement.examine_wheel(wheel)
    assert found.problems == ()
    texts = {check.name: check.text for check in found.checks}
    assert "made by a newer torchmill" in texts["manifest"]
    assert "cannot tell" in texts["manifest"]


def test_only_a_statement_of_a_known_format_vouches(wheel: Path) -> None:
    dist_files.manifest_path(wheel).unlink()

    def renew(said: dict[str, Any]) -> None:
        said["predicate"]["buildDefinition"]["internalParameters"]["format"] = formats.STATEMENT + 1

    edit(statement_of(wheel), renew)
    found = agreement.examine_wheel(wheel)
    assert (found.status, found.problems) == (agreement.SOUND, ())


@pytest.mark.parametrize("number", [0, None])
def test_of_an_older_format_the_documents_are_compared_with_the_wheel_alone(
    wheel: Path, number: int | None
) -> None:
    """The commit that it says may not have been proven; what another torchmill derived from it is its own matter."""

    def age(said: dict[str, Any]) -> None:
        said.pop("format")
        said.update({} if number is None else {"format": number}, builder={"id": "urn:another"})

    edit(dist_files.manifest_path(wheel), age)
    found = agreement.examine_wheel(wheel)
    assert (found.status, found.voucher) == (agreement.VOUCHED, "manifest")
    assert (
        f"said to be commit {told_wheels.COMMIT}"
        in {one.name: one.summary for one in found.checks}["manifest"]
    )
    edit(statement_of(wheel), lambda said: said["subject"][0]["digest"].update(sha256="0" * 64))
    assert agreement.examine_wheel(wheel).status == agreement.WRONG


@pytest.mark.parametrize("number", ["1", 1.0, True, -1])
def test_a_format_that_is_no_number_is_named(wheel: Path, number: object) -> None:
    edit(dist_files.manifest_path(wheel), lambda said: said.update(format=number))
    assert any("which is none" in problem for problem in agreement.examine_wheel(wheel).problems)


def test_a_published_wheel_has_no_manifest_and_is_compared_with_the_rest(wheel: Path) -> None:
    dist_files.manifest_path(wheel).unlink()
    assert agreement.examine_wheel(wheel).problems == ()
    edit(statement_of(wheel), lambda said: said["subject"][0]["digest"].update(sha256="0" * 64))
    assert agreement.examine_wheel(wheel).problems


def test_papers_that_are_missing_are_written_of_the_manifest(wheel: Path) -> None:
    kept = {file: file.read_bytes() for file in (statement_of(wheel), sbom_of(wheel))}
    for file in kept:
        file.unlink()
    layout = Layout(wheel.parents[1], wheel.parent / "cache")
    (told,) = verify.verify_wheels(layout).data["wheels"]
    assert [one["name"] for one in told["checks"] if one["problems"]] == ["statement", "SBOM"]
    assert [one["ok"] for one in verify.verify_wheels(layout, write=True).data["wheels"]] == [True]
    assert {file: file.read_bytes() for file in kept} == kept


def test_papers_are_not_written_of_the_manifest_of_another_wheel(wheel: Path) -> None:
    statement_of(wheel).unlink()
    edit(dist_files.manifest_path(wheel), lambda said: said.update(sha256="0" * 64))
    verify.write_missing([wheel])
    assert not statement_of(wheel).exists()


def test_papers_are_not_written_of_a_record_that_contradicts_itself(tmp_path: Path) -> None:
    def contradict(members: dict[str, bytes]) -> None:
        members["tinytorch-1.0+cpu.dist-info/RECORD"] += b"tinytorch/__init__.py,sha256=x,1\n"

    wheel = written_wheels.made(tmp_path, change=contradict)
    sha256 = hashlib.sha256(wheel.read_bytes()).hexdigest()
    said = {
        "wheel": wheel.name,
        "sha256": sha256,
        "version": "1.0+cpu",
        "package": "tinytorch",
        "tag": "v1.0",
    }
    dist_files.manifest_path(wheel).write_text(
        json.dumps(said | {"identifier": "wheel-3.10-cpu", "key": "0"})
    )
    with refused("wheel-rejected"):
        verify.verify_wheels(Layout(tmp_path, tmp_path), [str(wheel)], write=True).require()
    assert sorted(path.name for path in tmp_path.glob("*.whl*")) == [
        wheel.name,
        f"{wheel.name}.json",
    ]


def test_what_cannot_follow_from_a_manifest_is_told_and_not_written(wheel: Path) -> None:
    layout = Layout(wheel.parents[1], wheel.parent / "cache")
    statement_of(wheel).unlink()
    edit(dist_files.manifest_path(wheel), lambda said: said.pop("key"))
    (wheel.parent / "broken-1.0-py3-none-any.whl").write_text("")
    broken, spoiled = verify.verify_wheels(layout, write=True).data["wheels"]
    assert broken["checks"][0]["problems"][0].startswith("not a sound wheel")
    wrong = {one["name"]: one["problems"] for one in spoiled["checks"] if one["problems"]}
    assert wrong == {"manifest": ("cannot be understood (lacks 'key')",)}
    statement_of(wheel).mkdir()
    edit(dist_files.manifest_path(wheel), lambda said: said.update(key="k"))
    assert "statement   cannot be read" in str(verify.verify_wheels(layout, write=True))
    statement_of(wheel).rmdir()
    statement_of(wheel).symlink_to("nowhere/else")
    verify.write_missing([wheel])
    assert statement_of(wheel).is_file()


@pytest.mark.parametrize(
    "processor", [{"name": "x", "needs": 5}, {"name": "x"}, "skylake", ["avx2"]]
)
def test_a_processor_that_cannot_be_understood_is_named(wheel: Path, processor: object) -> None:
    edit(dist_files.manifest_path(wheel), lambda said: said.update(processor=processor))
    told = str(verify.verify_wheels(Layout(wheel.parents[1], wheel.parents[1])))
    assert "processor   cannot be understood" in told


def test_of_many_problems_a_person_is_told_some_and_a_program_all(tmp_path: Path) -> None:
    rows = "".join(f"made/up{number}.py,,\n" for number in range(100)).encode()
    record = "tinytorch-1.0+cpu.dist-info/RECORD"
    written_wheels.made(
        tmp_path / "dist", change=lambda members: members.update({record: members[record] + rows})
    )
    said = verify.verify_wheels(Layout(tmp_path, tmp_path))
    assert "and 92 more" in str(said)
    assert len(str(said)) < 4000
    data: Any = said.data
    assert sum(len(check["problems"]) for check in data["wheels"][0]["checks"]) == 100


def test_what_is_not_there_is_said(tmp_path: Path) -> None:
    layout = Layout(tmp_path, tmp_path)
    with refused("not-a-wheel"):
        verify.verify_wheels(layout, [str(tmp_path / "absent.whl")])
    with refused("no-wheels"):
        verify.verify_wheels(layout)
    (tmp_path / "x.whl.json").write_text("{}")
    with refused("not-a-wheel"):
        verify.verify_wheels(layout, [str(tmp_path / "x.whl.json")])


def test_the_task_prints_a_line_for_each_check_and_ends_with_14(
    wheel: Path, tmp_path: Path
) -> None:
    done = commands.run("invoke", "verify", str(wheel), home=tmp_path)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 9
    edit(sbom_of(wheel), lambda said: said.update(bomFormat="SPDX"))
    done = commands.run("invoke", "verify", "--json", str(wheel), home=tmp_path)
    assert done.returncode == DeliveryError.exit_code
    assert "SBOM: is not a CycloneDX document" in done.stderr
    assert [
        check["name"] for check in json.loads(done.stdout)["wheels"][0]["checks"] if not check["ok"]
    ] == ["SBOM"]


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_reader_that_has_gone_does_not_hide_what_is_wrong(
    tmp_path: Path, unbuffered: str
) -> None:
    wheel = written_wheels.made(tmp_path)
    wheel.write_bytes(wheel.read_bytes()[:-1])
    environ = commands.environment(tmp_path, {"PYTHONUNBUFFERED": unbuffered})
    argv = [sys.executable, "-m", "invoke", "verify", str(wheel)]
    pipe = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(argv, cwd=commands.ROOT, env=environ, text=True, **pipe) as task:  # type: ignore[call-overload]
        task.stdout.close()
        said = task.stderr.read()
    assert task.returncode == DeliveryError.exit_code
    assert without_code(said).startswith("error: ")
    assert "BrokenPipe" not in said


def test_the_version_of_torchmill_decides_nothing(wheel: Path) -> None:
    """Its format does: the same version wrote different statements, and different ones the same."""
    told = told_wheels.manifest(wheel)
    told_wheels.write(wheel, told | {"builder": told["builder"] | {"torchmill": "0.0.1"}})
    assert agreement.examine_wheel(wheel).problems == ()
    edit(
        statement_of(wheel),
        lambda said: said["predicate"]["buildDefinition"].pop("resolvedDependencies"),
    )
    assert agreement.examine_wheel(wheel).problems, (
        "one of this format says all that follows from its manifest"
    )


X = Reference("X")


@pytest.mark.parametrize(
    ("said", "wanted", "told"),
    [
        ({"a": {"b": 1}}, {"a": {"b": 2}}, ["a.b is 1, X says 2"]),
        ({"a": True}, {"a": 1}, ["a is True, X says 1"]),
        ({"a": 1.0}, {"a": 1}, ["a is 1.0, X says 1"]),
        ({}, {"a": None}, ["a is missing, X says None"]),
        ({"a": None}, {}, ["a is None, which X does not mention"]),
        ({"a": [1, 2]}, {"a": [1]}, ["a has 2 entries, X says 1"]),
        ({"a": [1, 2]}, {"a": [1, 3]}, ["a[1] is 2, X says 3"]),
        (
            {"a": ["x", "y"]},
            {"a": ["y", "z"]},
            ["a[x] is 'x', which X does not mention", "a[z] is missing, X says 'z'"],
        ),
        ({"a": [{"name": "x", "v": 1}]}, {"a": [{"name": "x", "v": 2}]}, ["a[x].v is 1, X says 2"]),
        (
            {"a": [{"name": "x", "annotations": {"kind": "patch"}}]},
            {"a": []},
            [
                "a[patch x] is {'name': 'x', 'annotations': {'kind': 'patch'}}, which X does not mention"
            ],
        ),
        (
            {"a": [{"name": "x"}, {"name": "x"}]},
            {"a": [{"name": "x"}]},
            ["a has 2 entries, X says 1"],
        ),
        ({"a": [{"name": "y"}, {"name": "x"}]}, {"a": [{"name": "x"}, {"name": "y"}]}, []),
        ([], {}, ["it is [], X says {}"]),
    ],
)
def test_each_field_is_told_with_both_sides(said: Any, wanted: Any, told: list[str]) -> None:
    assert document_differences(said, wanted, X) == told


def test_what_is_long_or_many_is_cut() -> None:
    (clause,) = document_differences({"a": "x" * 1000}, {"a": 1}, X)
    assert len(clause) < 120
    assert len(document_differences(dict.fromkeys("abcdefghijklmnop", 1), {}, X)) == MAX_DIFFERENCES
