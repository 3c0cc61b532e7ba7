"""`invoke verify`: a sound wheel, and each mistake in one of the documents beside it."""

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

from tests.support import commands, documented_wheels
from tests.support.refusals import refused, without_code
from torchmill.commands import verify
from torchmill.core import formats
from torchmill.core.errors import DeliveryError
from torchmill.core.paths import Layout
from torchmill.deliver import agreement
from torchmill.deliver.differences import MAX_DIFFERENCES, ExpectedSource, document_differences
from torchmill.wheel import dist_files, sbom

Document = dict[str, Any]
Change = Callable[[Document], object]
ZEROS = "0" * 64  # no wheel has this sha256
NO_COMMIT = "0" * 40


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return documented_wheels.built(tmp_path_factory.mktemp("sound"))


@pytest.fixture
def wheel(sound: Path, tmp_path: Path) -> Path:
    """Return a copy of the sound wheel and its documents, for a test to damage."""
    shutil.copytree(sound.parent, tmp_path / "dist")
    return tmp_path / "dist" / sound.name


def edit(file: Path, change: Change) -> None:
    document = json.loads(file.read_text("utf-8"))
    change(document)
    file.write_text(json.dumps(document), "utf-8")


def forge_subject(statement: Document) -> None:
    """Make a statement name another wheel's digest."""
    statement["subject"][0]["digest"]["sha256"] = ZEROS


def problems_of(wheel: Path) -> tuple[str, ...]:
    return agreement.examine_wheel(wheel).problems


def checks_with_problems(wheel: Path) -> set[str]:
    return {problem.partition(":")[0] for problem in problems_of(wheel)}


def statement_of(wheel: Path) -> Path:
    return dist_files.document_path(wheel, dist_files.STATEMENT_SUFFIX)


def sbom_of(wheel: Path) -> Path:
    return dist_files.document_path(wheel, dist_files.SBOM_SUFFIX)


def test_a_sound_wheel_passes_each_check(sound: Path) -> None:
    verdict = agreement.examine_wheel(sound)
    assert verdict.problems == ()
    names = ["wheel", "contents", "tags", "manifest", "statement", "SBOM", "inner SBOM"]
    names.append("advisories")
    assert [check.name for check in verdict.checks] == names
    verdict.require()


def dependency(kind: str) -> Change:
    """Return a change that gives the first dependency of a kind another digest."""

    def change(statement: Document) -> None:
        dependencies = statement["predicate"]["buildDefinition"]["resolvedDependencies"]
        for dependency in dependencies:
            if dependency["annotations"]["kind"] == kind:
                dependency["digest"] = {"gitCommit": NO_COMMIT}
                return

    return change


def component(reference: str, **fields: Any) -> Change:
    """Return a change of fields of one component."""

    def change(sbom: Document) -> None:
        for component in sbom["components"]:
            if component["bom-ref"] == reference:
                component.update(fields)

    return change


Tampering = tuple[Callable[[Path], Path], Change, str]
SOURCE_COMMIT = "[source tinytorch].digest.gitCommit"
NO_HASH = {"alg": "SHA-256", "content": ZEROS}
LIBRARY = f"bundled library:{documented_wheels.BUNDLED}"


TAMPERED: list[Tampering] = [
    (
        dist_files.manifest_path,
        lambda document: document.update(sha256=ZEROS),
        "manifest: says sha256",
    ),
    (
        dist_files.manifest_path,
        lambda document: document.update(wheel="other.whl"),
        "manifest: says wheel 'other.whl'",
    ),
    (
        dist_files.manifest_path,
        lambda document: document.update(commit=NO_COMMIT),
        f"{SOURCE_COMMIT} is '{documented_wheels.COMMIT}', the manifest says '{NO_COMMIT}'",
    ),
    (
        dist_files.manifest_path,
        lambda document: document.pop("key"),
        "manifest: cannot be understood (lacks 'key')",
    ),
    (
        dist_files.manifest_path,
        lambda document: document.update(bundled=3),
        "manifest: cannot be understood",
    ),
    (
        statement_of,
        dependency("source"),
        f"{SOURCE_COMMIT} is '{NO_COMMIT}', the manifest says '{documented_wheels.COMMIT}'",
    ),
    (
        statement_of,
        dependency("submodule"),
        "resolvedDependencies[submodule third_party/fmt].digest",
    ),
    (
        statement_of,
        forge_subject,
        f"[{documented_wheels.WHEEL}].digest.sha256 is '{ZEROS}', the manifest says",
    ),
    (
        statement_of,
        lambda document: document["predicate"]["runDetails"]["builder"].update(id="https://evil"),
        "statement: predicate.runDetails.builder.id is 'https://evil', the manifest says 'urn:",
    ),
    (
        statement_of,
        lambda document: document.update(more=1),
        "statement: more is 1, which the manifest does not mention",
    ),
    (
        statement_of,
        lambda document: document.update(predicateType="https://x"),
        "is not SLSA 1 provenance",
    ),
    (
        statement_of,
        lambda document: document.update(predicate=[]),
        "statement: has the buildType None",
    ),
    (
        sbom_of,
        component(LIBRARY, hashes=[NO_HASH]),
        f"components[{LIBRARY}].hashes[SHA-256].content is '0",
    ),
    (
        sbom_of,
        component("requirement:cmake==3.27.9", version="1"),
        "SBOM: components[requirement:cmake==3.27.9].version is '1', the manifest says '3.27.9'",
    ),
    (sbom_of, lambda document: document["components"].clear(), "SBOM: components[bundled library"),
    (
        sbom_of,
        lambda document: document["components"].append(document["components"][0]),
        "SBOM: components has 16 entries, the manifest says 15",
    ),
    (
        sbom_of,
        lambda document: document["dependencies"].pop(0),
        f"SBOM: dependencies[{LIBRARY}] is missing, the",
    ),
    (
        sbom_of,
        lambda document: document.update(components=7),
        "SBOM: components is 7, the manifest says [",
    ),
    (sbom_of, lambda document: document.update(metadata={}), "SBOM: metadata.component is missing"),
    (
        sbom_of,
        lambda document: document["components"][0].update(properties=7),
        "].properties is 7, the manifest",
    ),
    (
        sbom_of,
        lambda document: document.update(bomFormat="SPDX"),
        "SBOM: is not a CycloneDX document",
    ),
]


@pytest.mark.parametrize(("file", "change", "problem"), TAMPERED)
def test_tampering_is_reported(
    wheel: Path,
    file: Callable[[Path], Path],
    change: Change,
    problem: str,
) -> None:
    edit(file(wheel), change)
    verdict = agreement.examine_wheel(wheel)
    assert problem in "\n".join(verdict.problems)
    with refused("wheel-rejected"):
        verdict.require()


UNREADABLE = {
    "empty": (b"", "it is empty"),
    "list": (b"[]", "it is not a JSON object"),
    "truncated": (b'{"a": 1', "it is not JSON: Expecting"),
    "bytes": (b'{"\xff": 1}', "it is not UTF-8 text"),
    "twice": (b'{"a": 1, "a": 2}', "it says 'a' twice"),
    "deep": (b"[" * 100_000, "it is nested too deeply"),
}


@pytest.mark.parametrize("file", [dist_files.manifest_path, statement_of, sbom_of])
@pytest.mark.parametrize(("content", "reason"), UNREADABLE.values(), ids=UNREADABLE)
def test_an_unreadable_document_is_reported(
    wheel: Path, file: Callable[[Path], Path], content: bytes, reason: str
) -> None:
    file(wheel).write_bytes(content)
    problems = problems_of(wheel)
    assert any(f"cannot be read ({reason}" in problem for problem in problems), problems


def test_documents_of_another_program_are_reported(wheel: Path) -> None:
    for file in (dist_files.manifest_path, statement_of, sbom_of):
        file(wheel).write_text('{"name": "my-project", "private": true}')
    assert checks_with_problems(wheel) == {"manifest", "statement", "SBOM", "inner SBOM"}


@pytest.mark.parametrize(
    ("file", "change", "problem"),
    [
        (
            statement_of,
            forge_subject,
            f"subject[{documented_wheels.WHEEL}].digest.sha256 is '{ZEROS}', the wheel says",
        ),
        (
            statement_of,
            lambda document: document.pop("subject"),
            "statement: subject is None, the wheel says",
        ),
        (
            sbom_of,
            lambda document: document["metadata"]["component"].update(version="2"),
            "version is '2', the wheel",
        ),
        (
            sbom_of,
            component(LIBRARY, hashes=[NO_HASH]),
            f"{documented_wheels.BUNDLED} in the wheel is not the file",
        ),
        (
            sbom_of,
            lambda document: document["components"][0].update(properties=7),
            "SBOM: cannot be understood",
        ),
    ],
)
def test_without_a_manifest_documents_are_compared_with_the_wheel(
    wheel: Path,
    file: Callable[[Path], Path],
    change: Change,
    problem: str,
) -> None:
    dist_files.manifest_path(wheel).unlink()
    edit(file(wheel), change)
    assert problem in "\n".join(problems_of(wheel))


def with_inner(wheel: Path, change: Change, *, honest: bool) -> None:
    """Change the SBOM in a wheel, and write RECORD and all documents for it.

    An honest change also updates its serial number, which is computed from its content.
    """
    with zipfile.ZipFile(wheel) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    path = next(name for name in members if name.endswith(sbom.INNER_PATH))
    document = json.loads(members[path])
    change(document)
    if honest:
        document["serialNumber"] = sbom.serial_number(document, None)
    documented_wheels.add(members, path, json.dumps(document).encode())
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    documented_wheels.write(wheel, documented_wheels.manifest(wheel))


@pytest.mark.parametrize(
    ("change", "honest", "problem"),
    [
        (
            component("submodule:third_party/fmt", version="1"),
            True,
            "[submodule:third_party/fmt].version is '1', the ",
        ),
        (
            component(LIBRARY, hashes=[NO_HASH]),
            True,
            f"{documented_wheels.BUNDLED} in the wheel is not the file",
        ),
        (lambda document: document["components"].pop(0), True, "] is missing, the "),
        (component("submodule:third_party/fmt", licenses=[]), True, "licenses"),
        (component("submodule:third_party/fmt", licenses=[]), False, "serialNumber is 'urn:uuid:"),
        (
            lambda document: document["metadata"]["component"].update(version="2"),
            True,
            "version is '2', the wheel says",
        ),
        (lambda document: document.update(bomFormat="SPDX"), True, "is not a CycloneDX document"),
        (lambda document: document.update(components=7), True, "cannot be understood"),
    ],
)
def test_the_inner_sbom_agrees_with_the_wheel_and_the_outer_sbom(
    wheel: Path, change: Change, honest: bool, problem: str
) -> None:
    with_inner(wheel, change, honest=honest)
    problems = [text for text in problems_of(wheel) if text.startswith("inner SBOM: ")]
    assert any(problem in text for text in problems), problems


def test_the_inner_sbom_does_not_depend_on_the_mirror_of_the_source(wheel: Path) -> None:
    """Only the documents beside the wheel name a mirror."""
    documented_wheels.write(
        wheel,
        documented_wheels.manifest(wheel)
        | {"source": "https://mirror.example/pytorch/pytorch.git"},
    )
    assert "mirror.example" in sbom_of(wheel).read_text("utf-8")
    assert problems_of(wheel) == ()


def test_a_missing_inner_sbom_is_reported(tmp_path: Path) -> None:
    wheel = written_wheels.made(tmp_path)
    documented_wheels.write(wheel, documented_wheels.manifest(wheel) | {"bundled": []})
    assert problems_of(wheel) == ("inner SBOM: is missing: build the wheel again",)


def test_a_damaged_inner_sbom_is_reported(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        members = archive.infolist()
    (member,) = [info for info in members if info.filename.endswith(sbom.INNER_PATH)]
    content = bytearray(wheel.read_bytes())
    header_bytes = 30 + len(member.filename)
    content[member.header_offset + header_bytes + 9] ^= 1
    wheel.write_bytes(content)
    assert "inner SBOM: cannot be understood (" in "\n".join(problems_of(wheel))


def test_a_wheel_that_was_renamed_with_its_documents_is_reported(wheel: Path) -> None:
    other = wheel.with_name(wheel.name.replace("py3-none-any", "py3-none-linux_x86_64"))
    for file in (wheel, *dist_files.companion_paths(wheel)[:3]):
        file.rename(file.with_name(file.name.replace(wheel.name, other.name)))
    problems = "\n".join(problems_of(other))
    assert f"manifest: says wheel '{wheel.name}', the wheel is '{other.name}'" in problems
    assert f"subject[{wheel.name}] is" in problems


def test_an_invalid_hash_in_record_is_reported_only_for_record(tmp_path: Path) -> None:
    def damage(members: dict[str, bytes]) -> None:
        record = next(name for name in members if name.endswith("/RECORD"))
        members[record] = members[record].replace(
            b"tinytorch/__init__.py,sha256=", b"tinytorch/__init__.py,sha256=a"
        )

    wheel = written_wheels.made(tmp_path, change=damage)
    manifest = documented_wheels.manifest(wheel) | {"bundled": [], "origins": {}}
    del manifest["licences"]  # by which the wheel would have to have an SBOM inside
    documented_wheels.write(wheel, manifest)
    (problem,) = problems_of(wheel)
    assert problem == "contents: tinytorch/__init__.py differs from its RECORD entry"


def test_another_wheel_of_the_same_name_fits_none_of_the_documents(wheel: Path) -> None:
    folder = wheel.parent / "other"
    other = written_wheels.made(folder, "tinytorch", "1.13.1+cu117", body="x = 1\n")
    other.replace(wheel)
    assert checks_with_problems(wheel) == {"manifest", "statement", "SBOM"}


def name_original(wheel: Path, name: object, sha256: str) -> None:
    """Write into a wheel's manifest that it was slimmed from an original."""
    original = {"wheel": name, "version": "1.0", "sha256": sha256}
    edit(dist_files.manifest_path(wheel), lambda manifest: manifest.update(original=original))


def test_an_original_that_is_no_wheel_is_reported(wheel: Path) -> None:
    original = wheel.with_name(wheel.name.replace("1.13.1", "1.13.0"))
    original.write_bytes(b"no archive")
    name_original(wheel, original.name, hashlib.sha256(b"no archive").hexdigest())
    assert "original: File is not a zip file" in problems_of(wheel)


@pytest.mark.parametrize("name", ["../x.whl", "", "..", 7])
def test_a_missing_original_is_reported(wheel: Path, name: object) -> None:
    """Its name leads to no other folder, and the tags are not judged without it."""
    name_original(wheel, name, "0")
    checks = {check.name: check.text for check in agreement.examine_wheel(wheel).checks}
    assert "not compared" in checks["original"]
    assert "not judged" in checks["tags"]


def test_other_tags_than_those_of_the_original_are_reported(wheel: Path) -> None:
    original = written_wheels.made(
        wheel.parent / "original", "tinytorch", "1.13.1+cu117", "cp39-cp39-win_amd64"
    )
    name_original(wheel, original.name, hashlib.sha256(original.read_bytes()).hexdigest())
    problems = agreement.examine_wheel(wheel, original).problems
    assert any("has other tags than" in problem for problem in problems)


def test_the_text_of_a_check_is_one_printable_line() -> None:
    check = agreement.AgreementCheck("statement", "by urn:x\n  signature   of a key\x1b[8m")
    assert check.text.isprintable()


def test_a_damaged_wheel_has_one_problem(wheel: Path) -> None:
    wheel.write_bytes(wheel.read_bytes()[:-30])
    (problem,) = problems_of(wheel)
    assert problem.startswith("wheel: ")


def test_contents_that_contradict_record_are_reported(tmp_path: Path) -> None:
    changed = written_wheels.made(
        tmp_path, change=lambda members: members.update({"tinytorch/__init__.py": b"evil()"})
    )
    assert "tinytorch/__init__.py" in "\n".join(problems_of(changed))


def test_a_wheel_without_documents_is_sound_and_not_vouched_for(tmp_path: Path) -> None:
    verdict = agreement.examine_wheel(written_wheels.made(tmp_path))
    assert (verdict.status, verdict.voucher, verdict.problems) == (agreement.SOUND, "", ())
    verdict.require()


def test_the_manifest_vouches_for_a_wheel_or_else_the_statement(wheel: Path) -> None:
    verdict = agreement.examine_wheel(wheel)
    assert (verdict.status, verdict.voucher) == (agreement.VOUCHED, "manifest")
    dist_files.manifest_path(wheel).unlink()
    assert agreement.examine_wheel(wheel).voucher == "statement"
    statement_of(wheel).unlink()
    assert agreement.examine_wheel(wheel).status == agreement.SOUND, (
        "an SBOM lists the contents, and does not say who made the wheel"
    )


def test_an_oddity_in_a_wheel_of_others_is_a_note(tmp_path: Path) -> None:
    plain = written_wheels.made(
        tmp_path, tag="py3-none-linux_x86_64", files={"start.pth": b"import x\n"}
    )
    wheel = plain.rename(plain.with_name(plain.name.replace("linux_", "manylinux_2_28_")))
    verdict = agreement.examine_wheel(wheel)
    assert (verdict.status, verdict.problems) == (agreement.SOUND, ())
    notes = {check.name: check.notes for check in verdict.checks if check.notes}
    assert notes["contents"] == ("start.pth can run code whenever Python starts",)
    assert "WHEEL says py3-none-linux_x86_64" in notes["tags"][0]
    texts = {check.name: check.text for check in verdict.checks}
    assert "; note: start.pth can run code" in texts["contents"]


def test_a_manifest_of_a_newer_format_is_not_judged(wheel: Path) -> None:
    newer = {"format": formats.MANIFEST + 1, "sha256": "of a form that is not known today"}
    edit(dist_files.manifest_path(wheel), lambda manifest: manifest.update(newer))
    verdict = agreement.examine_wheel(wheel)
    assert verdict.problems == ()
    texts = {check.name: check.text for check in verdict.checks}
    assert "made by a newer torchmill" in texts["manifest"]
    assert "cannot tell" in texts["manifest"]


def test_only_a_statement_of_a_known_format_vouches(wheel: Path) -> None:
    dist_files.manifest_path(wheel).unlink()

    def renew(statement: Document) -> None:
        parameters = statement["predicate"]["buildDefinition"]["internalParameters"]
        parameters["format"] = formats.STATEMENT + 1

    edit(statement_of(wheel), renew)
    verdict = agreement.examine_wheel(wheel)
    assert (verdict.status, verdict.problems) == (agreement.SOUND, ())


@pytest.mark.parametrize("number", [0, None])
def test_with_a_manifest_of_an_older_format_documents_are_compared_with_the_wheel_alone(
    wheel: Path, number: int | None
) -> None:
    """Its commit may not be proven, and an older torchmill derived other documents from it."""

    def age(manifest: Document) -> None:
        manifest.pop("format")
        if number is not None:
            manifest["format"] = number
        manifest["builder"] = {"id": "urn:another"}

    edit(dist_files.manifest_path(wheel), age)
    verdict = agreement.examine_wheel(wheel)
    assert (verdict.status, verdict.voucher) == (agreement.VOUCHED, "manifest")
    summaries = {check.name: check.summary for check in verdict.checks}
    assert f"said to be commit {documented_wheels.COMMIT}" in summaries["manifest"]
    edit(statement_of(wheel), forge_subject)
    assert agreement.examine_wheel(wheel).status == agreement.WRONG


@pytest.mark.parametrize("number", ["1", 1.0, True, -1])
def test_an_invalid_format_is_reported(wheel: Path, number: object) -> None:
    edit(dist_files.manifest_path(wheel), lambda manifest: manifest.update(format=number))
    assert any("has the invalid format" in problem for problem in problems_of(wheel))


def test_a_published_wheel_without_manifest_is_compared_with_its_documents(wheel: Path) -> None:
    dist_files.manifest_path(wheel).unlink()
    assert problems_of(wheel) == ()
    edit(statement_of(wheel), forge_subject)
    assert problems_of(wheel)


def test_missing_documents_are_written_from_the_manifest(wheel: Path) -> None:
    documents = {file: file.read_bytes() for file in (statement_of(wheel), sbom_of(wheel))}
    for file in documents:
        file.unlink()
    layout = Layout(wheel.parents[1], wheel.parent / "cache")
    (verdict,) = verify.verify_wheels(layout).data["wheels"]
    failed = [check["name"] for check in verdict["checks"] if check["problems"]]
    assert failed == ["statement", "SBOM"]
    (verdict,) = verify.verify_wheels(layout, write=True).data["wheels"]
    assert verdict["ok"]
    assert {file: file.read_bytes() for file in documents} == documents


def test_documents_are_not_written_from_the_manifest_of_another_wheel(wheel: Path) -> None:
    statement_of(wheel).unlink()
    edit(dist_files.manifest_path(wheel), lambda document: document.update(sha256=ZEROS))
    verify.write_missing([wheel])
    assert not statement_of(wheel).exists()


def test_documents_are_not_written_for_a_wheel_whose_record_contradicts_itself(
    tmp_path: Path,
) -> None:
    def contradict(members: dict[str, bytes]) -> None:
        members["tinytorch-1.0+cpu.dist-info/RECORD"] += b"tinytorch/__init__.py,sha256=x,1\n"

    wheel = written_wheels.made(tmp_path, change=contradict)
    sha256 = hashlib.sha256(wheel.read_bytes()).hexdigest()
    manifest = {
        "wheel": wheel.name,
        "sha256": sha256,
        "version": "1.0+cpu",
        "package": "tinytorch",
        "tag": "v1.0",
        "identifier": "wheel-3.10-cpu",
        "key": "0",
    }
    dist_files.manifest_path(wheel).write_text(json.dumps(manifest))
    with refused("wheel-rejected"):
        verify.verify_wheels(Layout(tmp_path, tmp_path), wheel=[str(wheel)], write=True).require()
    assert sorted(path.name for path in tmp_path.glob("*.whl*")) == [
        wheel.name,
        f"{wheel.name}.json",
    ]


def test_documents_of_an_incomplete_manifest_are_reported_and_not_written(wheel: Path) -> None:
    layout = Layout(wheel.parents[1], wheel.parent / "cache")
    statement_of(wheel).unlink()
    edit(dist_files.manifest_path(wheel), lambda document: document.pop("key"))
    (wheel.parent / "broken-1.0-py3-none-any.whl").write_text("")
    broken, incomplete = verify.verify_wheels(layout, write=True).data["wheels"]
    assert broken["checks"][0]["problems"][0].startswith("not a sound wheel")
    failed = {
        check["name"]: check["problems"] for check in incomplete["checks"] if check["problems"]
    }
    assert failed == {"manifest": ("cannot be understood (lacks 'key')",)}
    statement_of(wheel).mkdir()
    edit(dist_files.manifest_path(wheel), lambda document: document.update(key="k"))
    assert "statement   cannot be read" in str(verify.verify_wheels(layout, write=True))
    statement_of(wheel).rmdir()
    statement_of(wheel).symlink_to("nowhere/else")
    verify.write_missing([wheel])
    assert statement_of(wheel).is_file()


@pytest.mark.parametrize(
    "processor", [{"name": "x", "needs": 5}, {"name": "x"}, "skylake", ["avx2"]]
)
def test_an_unreadable_processor_is_reported(wheel: Path, processor: object) -> None:
    edit(dist_files.manifest_path(wheel), lambda document: document.update(processor=processor))
    text = str(verify.verify_wheels(Layout(wheel.parents[1], wheel.parents[1])))
    assert "processor   cannot be understood" in text


def test_the_text_shows_some_of_many_problems_and_the_data_all(tmp_path: Path) -> None:
    rows = "".join(f"made/up{number}.py,,\n" for number in range(100)).encode()
    record = "tinytorch-1.0+cpu.dist-info/RECORD"
    written_wheels.made(
        tmp_path / "dist", change=lambda members: members.update({record: members[record] + rows})
    )
    output = verify.verify_wheels(Layout(tmp_path, tmp_path))
    assert "and 92 more" in str(output)
    assert len(str(output)) < 4000
    data: Any = output.data
    assert sum(len(check["problems"]) for check in data["wheels"][0]["checks"]) == 100


def test_missing_files_are_refused(tmp_path: Path) -> None:
    layout = Layout(tmp_path, tmp_path)
    with refused("not-a-wheel"):
        verify.verify_wheels(layout, wheel=[str(tmp_path / "absent.whl")])
    with refused("no-wheels"):
        verify.verify_wheels(layout)
    (tmp_path / "x.whl.json").write_text("{}")
    with refused("not-a-wheel"):
        verify.verify_wheels(layout, wheel=[str(tmp_path / "x.whl.json")])


def test_a_fix_that_an_sbom_claims_without_its_patch_is_a_problem(wheel: Path) -> None:
    def claim(document: dict[str, Any]) -> None:
        document["vulnerabilities"] = [
            {
                "id": "CVE-2000-1",
                "analysis": {"state": "resolved_with_pedigree"},
                "properties": [{"name": "torchmill:patch", "value": "torch/absent.patch"}],
            }
        ]

    edit(sbom_of(wheel), claim)
    assert "CVE-2000-1 is said to be fixed by torch/absent.patch" in "\n".join(problems_of(wheel))


def test_the_task_prints_a_line_for_each_check_and_ends_with_14(
    wheel: Path, tmp_path: Path
) -> None:
    done = commands.run("invoke", "verify", str(wheel), home=tmp_path)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 10
    edit(sbom_of(wheel), lambda document: document.update(bomFormat="SPDX"))
    done = commands.run("invoke", "verify", "--json", str(wheel), home=tmp_path)
    assert done.returncode == DeliveryError.exit_code
    assert "SBOM: is not a CycloneDX document" in done.stderr
    (verdict,) = json.loads(done.stdout)["wheels"]
    assert [check["name"] for check in verdict["checks"] if not check["ok"]] == ["SBOM"]


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_closed_stdout_does_not_hide_the_error(tmp_path: Path, unbuffered: str) -> None:
    wheel = written_wheels.made(tmp_path)
    wheel.write_bytes(wheel.read_bytes()[:-1])
    environ = commands.environment(tmp_path, {"PYTHONUNBUFFERED": unbuffered})
    argv = [sys.executable, "-m", "invoke", "verify", str(wheel)]
    with subprocess.Popen(
        argv,
        cwd=commands.ROOT,
        env=environ,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as task:
        assert task.stdout
        assert task.stderr
        task.stdout.close()
        errors = task.stderr.read()
    assert task.returncode == DeliveryError.exit_code
    assert without_code(errors).startswith("error: ")
    assert "BrokenPipe" not in errors


def test_the_version_of_torchmill_decides_nothing(wheel: Path) -> None:
    """The format decides: one version wrote different statements, and several wrote the same."""
    manifest = documented_wheels.manifest(wheel)
    manifest["builder"]["torchmill"] = "0.0.1"
    documented_wheels.write(wheel, manifest)
    assert problems_of(wheel) == ()
    edit(
        statement_of(wheel),
        lambda document: document["predicate"]["buildDefinition"].pop("resolvedDependencies"),
    )
    assert problems_of(wheel), "a statement of this format has all inputs of its manifest"


X = ExpectedSource("X")


@pytest.mark.parametrize(
    ("actual", "expected", "clauses"),
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
                (
                    "a[patch x] is {'name': 'x', 'annotations': {'kind': 'patch'}}, "
                    "which X does not mention"
                )
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
def test_each_difference_names_both_sides(actual: Any, expected: Any, clauses: list[str]) -> None:
    assert document_differences(actual, expected, X) == clauses


def test_long_values_and_many_differences_are_cut() -> None:
    (clause,) = document_differences({"a": "x" * 1000}, {"a": 1}, X)
    assert len(clause) < 120
    (clause,) = document_differences({"a": "x" * 1000 + "y"}, {"a": "x" * 1000 + "z"}, X)
    assert "xy'," in clause
    assert clause.endswith("xz'")
    many = dict.fromkeys("abcdefghijklmnop", 1)
    assert len(document_differences(many, {}, X)) == MAX_DIFFERENCES
