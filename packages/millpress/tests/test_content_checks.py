"""Contradictions in a finished wheel."""

from __future__ import annotations

import base64
import hashlib
import io
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from zipfile import ZIP_BZIP2, ZIP_DEFLATED, ZIP_LZMA, ZipFile

import pytest
from millpress import content_checks, wheel_file
from millpress.errors import WheelError
from press_support.expected_errors import refused
from press_support.written_wheels import Members, made, replacing

INFO = "tinytorch-1.0+cpu.dist-info"
STRAY = "it has bytes before, between or after its files, so that programs read it differently"
DATA = "tinytorch-1.0+cpu.data"


def test_a_sound_wheel_has_no_problems_or_oddities(tmp_path: Path) -> None:
    wheel = made(tmp_path, tag="2-cp39.cp310-abi3.none-linux_x86_64")
    assert list(content_checks.wheel_problems(wheel)) == []
    assert list(content_checks.wheel_oddities(wheel)) == []


@pytest.mark.parametrize(
    ("change", "clause"),
    [
        (
            lambda members: members.update({"tinytorch/__init__.py": b"evil = 1\n"}),
            "tinytorch/__init__.py differs from its RECORD entry",
        ),
        (
            lambda members: members.update({"tinytorch/more.py": b""}),
            "tinytorch/more.py has no entry in RECORD",
        ),
        (
            lambda members: members.pop("tinytorch/__init__.py"),
            "RECORD lists tinytorch/__init__.py, which the wheel does not hold",
        ),
        *(
            (
                lambda members, name=name: members.update(
                    {f"{INFO}/RECORD": members[f"{INFO}/RECORD"].replace(b"sha256=", name)}
                ),
                f"{INFO}/METADATA has no sound hash in RECORD",
            )
            for name in (b"md5=", b"sha224=", b"shake_128=", b"")
        ),
        (lambda members: members.pop(f"{INFO}/RECORD"), f"{INFO}/RECORD is missing"),
        (lambda members: members.pop(f"{INFO}/WHEEL"), f"{INFO}/WHEEL is missing"),
        (
            lambda members: members.update({"tinytorch/__init__.py/x.py": b""}),
            "tinytorch/__init__.py is both a file and a folder",
        ),
        (
            replacing(
                f"{INFO}/METADATA",
                b"Version: 1.0+cpu\n",
                b"Version: 1.0+cpu\nRequires-Python: banana\n",
            ),
            "METADATA has 'Requires-Python: banana', which cannot be read",
        ),
        (
            replacing(
                f"{INFO}/METADATA",
                b"Version: 1.0+cpu\n",
                b"Version: 1.0+cpu\nRequires-Dist: no !\n",
            ),
            "METADATA has 'Requires-Dist: no !', which cannot be read",
        ),
        (
            replacing(f"{INFO}/METADATA", b"Name: tinytorch\n", b"Name: tinytorch\nName: other\n"),
            "METADATA has Name several times",
        ),
        (
            lambda members: members.update({f"{INFO}/WHEEL": b"Tag: py3--\n"}),
            "WHEEL has an invalid tag (Tag 'py3--' has an empty component: '')",
        ),
    ],
)
def test_a_contradiction_is_a_problem(
    tmp_path: Path, change: Callable[[Members], object], clause: str
) -> None:
    assert clause in list(content_checks.wheel_problems(made(tmp_path, change=change)))


def test_bytes_of_no_member_are_a_problem(tmp_path: Path) -> None:
    wheel = made(tmp_path)
    sound = wheel.read_bytes()
    other = made(tmp_path / "other", body="evil = 1\n").read_bytes()
    for content in (b"#!/bin/sh\n" + sound, sound + b"\0", other + sound):
        wheel.write_bytes(content)
        assert STRAY in list(content_checks.wheel_problems(wheel))
    wheel.write_bytes(sound)
    with ZipFile(wheel, "a") as archive:
        archive.comment = b"mine"
    assert STRAY in list(content_checks.wheel_problems(wheel))


def test_a_wheel_that_was_written_to_a_pipe_is_sound(tmp_path: Path) -> None:
    """Its members have their sizes behind their data."""

    class Pipe(io.BytesIO):
        def seekable(self) -> bool:
            return False

        def tell(self) -> int:
            raise OSError

    wheel = made(tmp_path)
    pipe = Pipe()
    with ZipFile(wheel) as archive, ZipFile(pipe, "w", ZIP_DEFLATED) as piped:
        for name in archive.namelist():
            piped.writestr(name, archive.read(name))
    wheel.write_bytes(pipe.getvalue())
    assert list(content_checks.wheel_problems(wheel)) == []


@pytest.mark.parametrize(
    ("offset", "content"),
    [
        (8, b"\x08\x00"),  # deflated, though it is stored
        (14, b"\x00\x00\x00\x00"),  # the checksum
        (22, b"\x01\x00\x00\x00"),  # the size
        (30, b"tinytorch/__INIT__.py"),
    ],
)
def test_a_file_whose_own_header_differs_is_refused(
    tmp_path: Path, offset: int, content: bytes
) -> None:
    wheel = made(tmp_path)
    damaged = bytearray(wheel.read_bytes())
    start = damaged.index(b"tinytorch/__init__.py") - 30 + offset
    damaged[start : start + len(content)] = content
    wheel.write_bytes(damaged)
    with refused("damaged-wheel") as caught:
        list(content_checks.wheel_problems(wheel))
    problem = "tinytorch/__init__.py has another name, size or checksum in its own header"
    assert problem in str(caught.value)


@pytest.mark.parametrize("declared", [b"", b"Wheel-Version: 2.0\n"])
def test_a_format_that_no_installer_accepts_is_a_problem(tmp_path: Path, declared: bytes) -> None:
    other = replacing(f"{INFO}/WHEEL", b"Wheel-Version: 1.0\n", declared)
    header = declared.decode().strip() or "Wheel-Version none"
    problems = list(content_checks.wheel_problems(made(tmp_path, change=other)))
    assert f"WHEEL says {header.replace(':', '')}, and installers accept only 1.x" in problems


def test_a_record_with_two_different_rows_for_a_file_is_refused(tmp_path: Path) -> None:
    twice = replacing(
        f"{INFO}/RECORD",
        b"tinytorch/__init__.py,",
        b"tinytorch/__init__.py,sha256=AAAA,5\ntinytorch/__init__.py,",
    )
    with refused("damaged-wheel"):
        list(content_checks.wheel_problems(made(tmp_path, change=twice)))


def test_a_damaged_member_is_a_problem_and_a_damaged_archive_refused(tmp_path: Path) -> None:
    wheel = made(tmp_path, body="something = 1\n")
    wheel.write_bytes(wheel.read_bytes().replace(b"something", b"nothing__"))
    problems = content_checks.wheel_problems(wheel)
    assert any("tinytorch/__init__.py is damaged" in problem for problem in problems)
    whole = wheel.read_bytes()
    wheel.write_bytes(whole[: len(whole) // 2])
    with refused("damaged-wheel"):
        wheel_file.read_wheel(wheel)


@pytest.mark.parametrize("method", [ZIP_BZIP2, ZIP_LZMA])
def test_a_compression_that_no_installer_unpacks_is_refused(tmp_path: Path, method: int) -> None:
    wheel = made(tmp_path)
    with ZipFile(wheel) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with ZipFile(wheel, "w", method) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    compressed = wheel.read_bytes()
    for content in (compressed, compressed.replace(b"\x5d\0\0", b"\xff\xff\xff")):
        wheel.write_bytes(content)
        with refused("damaged-wheel"):
            wheel_file.read_metadata(wheel)
        with refused("damaged-wheel"):
            list(content_checks.wheel_problems(wheel))


def test_tags_that_contradict_each_other_are_a_problem(tmp_path: Path) -> None:
    wheel = made(tmp_path, tag="cp310-cp310-linux_x86_64")
    better = wheel.rename(tmp_path / "tinytorch-1.0+cpu-7-cp310-cp310-manylinux_2_17_x86_64.whl")
    assert list(content_checks.wheel_problems(better)) == [], "PyTorch's own are named so"
    declared = "WHEEL says cp310-cp310-linux_x86_64, the file's name"
    expected = f"{declared} cp310-cp310-manylinux_2_17_x86_64"
    assert content_checks.renamed_platform(better) == expected
    for other in (
        "cp311-cp311-linux_x86_64",
        "cp310-abi3-linux_x86_64",
        "cp310-cp310-linux_aarch64",
        "cp310-cp310-any",
    ):
        renamed = better.rename(tmp_path / f"tinytorch-1.0+cpu-{other}.whl")
        assert f"{declared} {other}" in content_checks.wheel_problems(renamed)
        assert content_checks.renamed_platform(renamed) == ""
        better = renamed
    numbered = replacing(f"{INFO}/WHEEL", b"Root-Is", b"Build: 3\nRoot-Is")
    problems = list(
        content_checks.wheel_problems(made(tmp_path, tag="7-py3-none-any", change=numbered))
    )
    assert "WHEEL says build 3, the file's name 7" in problems


NAME = "tinytorch-1.0-py3-none-any.whl"


def listed(body: bytes, **files: bytes) -> dict[str, bytes]:
    """Return the members of a wheel, RECORD included."""
    info = "tinytorch-1.0.dist-info"
    members = {
        **files,
        "tinytorch/__init__.py": body,
        f"{info}/METADATA": b"Metadata-Version: 2.1\nName: tinytorch\nVersion: 1.0\n",
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    lines = []
    for name, data in members.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        lines.append(f"{name},sha256={digest},{len(data)}\n")
    return {**members, f"{info}/RECORD": "".join([*lines, f"{info}/RECORD,,\n"]).encode()}


def stored(members: dict[str, bytes], begin: int = 0, lie: str = "") -> tuple[bytes, bytes]:
    """Return the members of a zip archive, and its directory, which leads to the offset `begin`.

    The directory is sound. `lie` says what the local header of the module has instead.
    """
    body = b""
    directory = b""
    for name, data in members.items():
        offset = begin + len(body)
        crc = zlib.crc32(data)
        size = len(data)
        is_module = name.endswith(".py")
        flags = 0
        header_numbers = (crc, size, size)
        extra = b""
        descriptor = b""
        if lie.startswith("descriptor"):
            flags = 8
            header_numbers = (0, 0, 0)
            descriptor_numbers = (crc, size, size)
            if is_module and lie == "descriptor of another checksum":
                descriptor_numbers = (crc ^ 1, size, size)
            elif is_module and lie == "descriptor of other sizes":
                descriptor_numbers = (crc, 1, 1)
            elif is_module and lie == "descriptor and numbers":
                header_numbers = (crc ^ 5, size, size)
            descriptor = struct.pack("<4s3L", b"PK\7\x08", *descriptor_numbers)
        elif lie and is_module:
            header_numbers = (crc, 0xFFFFFFFF, 0xFFFFFFFF)  # the sizes are in the ZIP64 field
            if lie == "true ZIP64":
                extra = struct.pack("<2H2Q", 1, 16, size, size)
            elif lie == "false ZIP64":
                extra = struct.pack("<2H2Q", 1, 16, size - 1, size - 1)
        raw_name = name.encode()
        header = (45, flags, 0, 0, 0x21, *header_numbers, len(raw_name), len(extra))
        body += struct.pack("<4s5H3L2H", b"PK\3\4", *header)
        body += raw_name + extra + data + descriptor
        entry = (45, 3, 45, 0, flags, 0, 0, 0x21, crc, size, size, len(raw_name))
        place = (0, 0, 0, 0, 0o100644 << 16, offset)
        directory += struct.pack("<4s4B4H3L5H2L", b"PK\1\2", *entry, *place) + raw_name
    return body, directory


def refusals(wheel: Path) -> set[str]:
    """Return the problems of a wheel, or the code of the error."""
    try:
        return set(content_checks.wheel_problems(wheel))
    except WheelError as error:
        return {error.code}


def end_record(count: int, size: int, start: int) -> bytes:
    return struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, count, count, size, start, 0)


@pytest.mark.parametrize("lie", ["", "true ZIP64", "descriptor"])
def test_sizes_may_be_in_any_header_that_the_format_allows(tmp_path: Path, lie: str) -> None:
    members = listed(b"good = 1\n")
    body, directory = stored(members, lie=lie)
    wheel = tmp_path / NAME
    end = end_record(len(members), len(directory), len(body))
    wheel.write_bytes(body + directory + end)
    assert list(content_checks.wheel_problems(wheel)) == []


@pytest.mark.parametrize(
    "lie",
    [
        "false ZIP64",
        "missing ZIP64",
        "descriptor of another checksum",
        "descriptor of other sizes",
        "descriptor and numbers",
    ],
)
def test_members_with_other_sizes_than_in_the_directory_are_refused(
    tmp_path: Path, lie: str
) -> None:
    members = listed(b"good = 1\n")
    body, directory = stored(members, lie=lie)
    wheel = tmp_path / NAME
    end = end_record(len(members), len(directory), len(body))
    wheel.write_bytes(body + directory + end)
    assert refusals(wheel) & {STRAY, "damaged-wheel"}


def two_directories(good: dict[str, bytes], evil: dict[str, bytes], **changes: int) -> bytes:
    """Return an archive whose ZIP64 end record leads to `good`, and the short one to `evil`.

    Without members in `evil` both lead to `good`, except for `changes`: "here" is the number of
    members on this disk, "where" the offset of the ZIP64 record.
    """
    body, directory = stored(good)
    count, start = len(good), len(body)
    short = [count, len(directory), start]
    if evil:
        first = 30 + len(next(iter(good)))
        inner, listing = stored(evil, first)
        short = [len(evil), len(listing), first + len(inner)]
    values = {"here": count, "where": start + len(directory)} | changes
    long = struct.pack(
        "<4sQ2H2L4Q",
        b"PK\6\6",
        44,
        45 | 3 << 8,
        45,
        0,
        0,
        values["here"],
        count,
        len(directory),
        start,
    )
    locator = struct.pack("<4sLQL", b"PK\6\7", 0, values["where"], 1)
    return body + directory + long + locator + end_record(*short)


def test_a_wheel_with_two_directories_has_a_problem(tmp_path: Path) -> None:
    """Python reads the one that the ZIP64 record leads to, and some programs the other."""
    evil = listed(b"evil = 1\n")
    inner = b"".join(stored(evil, 30 + len("tinytorch/data.bin")))
    good = listed(b"good = 1\n", **{"tinytorch/data.bin": inner})
    wheel = tmp_path / NAME
    wheel.write_bytes(two_directories(good, {}))
    assert list(content_checks.wheel_problems(wheel)) == []
    wheel.write_bytes(two_directories(good, evil))
    with ZipFile(wheel) as archive:
        assert archive.read("tinytorch/__init__.py") == b"good = 1\n"
    assert STRAY in list(content_checks.wheel_problems(wheel))
    for change in ({"here": 1}, {"where": 1}):
        wheel.write_bytes(two_directories(good, {}, **change))
        assert refusals(wheel) & {STRAY, "not-a-wheel"}


@pytest.mark.parametrize("other", ["tinytorch/__INIT__.py", "TinyTorch/__init__.py"])
@pytest.mark.parametrize(
    ("platform", "harmful"),
    [("any", True), ("win_amd64", True), ("macosx_11_0_arm64", True), ("linux_x86_64", False)],
)
def test_names_that_differ_only_by_case(
    tmp_path: Path, other: str, platform: str, harmful: bool
) -> None:
    wheel = made(tmp_path, tag=f"py3-none-{platform}", files={other: b"evil = 1\n"})
    problems = list(content_checks.wheel_problems(wheel))
    oddities = list(content_checks.wheel_oddities(wheel))
    assert bool(problems) is harmful
    (clause,) = problems + oddities
    assert "are one file on systems that ignore case" in clause


def test_names_that_differ_only_by_their_unicode_form(tmp_path: Path) -> None:
    files = {"tinytorch/caf\u00e9.py": b"", "tinytorch/cafe\u0301.py": b""}
    (clause,) = content_checks.wheel_problems(made(tmp_path, files=files))
    assert "are one file" in clause


@pytest.mark.parametrize(
    ("name", "clause"),
    [
        ("evil.pth", "evil.pth can run code whenever Python starts"),
        (f"{DATA}/scripts/python", "replaces the command python"),
        (f"{DATA}/scripts/pip3.12", "replaces the command pip3.12"),
        (f"{DATA}/scripts/Python.EXE", "replaces the command Python.EXE"),
        (f"{DATA}/purelib/evil.pth", "evil.pth can run code whenever Python starts"),
        (f"{DATA}/platlib/evil.pth", "evil.pth can run code whenever Python starts"),
        ("sitecustomize.py", "sitecustomize.py can run code whenever Python starts"),
        ("usercustomize.py", "usercustomize.py can run code whenever Python starts"),
        ("tinytorch/sitecustomize.py", ""),
        ("weights.data", ""),
        (f"{DATA}/data/bin/sh", "is installed as bin/sh in the environment"),
        (
            f"{DATA}/data/lib/python3.12/site.py",
            "is installed as lib/python3.12/site.py in the environment",
        ),
        (f"{DATA}/elsewhere/x", "is in a folder that no installer knows"),
        ("other-2.0.data/scripts/x", "is in a folder that no installer knows"),
        (f"{DATA}/scripts/torchrun", ""),
        (f"{DATA}/data/share/man/x.1", ""),
        (f"{DATA}/purelib/x.py", ""),
    ],
)
def test_files_outside_the_package_are_oddities(tmp_path: Path, name: str, clause: str) -> None:
    wheel = made(tmp_path, files={name: b"x\n"})
    assert list(content_checks.wheel_problems(wheel)) == [], "installers take it"
    oddities = list(content_checks.wheel_oddities(wheel))
    assert len(oddities) == bool(clause)
    assert all(clause in oddity for oddity in oddities)


def test_commands_that_replace_those_of_python_are_oddities(tmp_path: Path) -> None:
    entries = b"[console_scripts]\ntorchrun = tinytorch:main\npip = tinytorch:main\n"
    files = {f"{INFO}/entry_points.txt": entries}
    assert list(content_checks.wheel_oddities(made(tmp_path, files=files))) == [
        "entry_points.txt replaces the command pip"
    ]
    plugins = b"[nbconvert.exporters]\npython = tinytorch:Exporter\n"
    files = {f"{INFO}/entry_points.txt": plugins}
    assert list(content_checks.wheel_oddities(made(tmp_path / "plugins", files=files))) == []
    files = {f"{INFO}/entry_points.txt": b"pip = tinytorch:main\n"}
    (clause,) = content_checks.wheel_oddities(made(tmp_path / "no-section", files=files))
    assert clause.startswith("entry_points.txt cannot be read (")
    members = {"pip-26.3.dist-info/entry_points.txt": entries}
    pip = made(tmp_path / "pip", "pip", "26.3", files=members)
    assert list(content_checks.wheel_oddities(pip)) == []


@pytest.mark.parametrize(
    ("declared", "file_tag"),
    [
        ("linux_x86_64", "manylinux_2_28_x86_64"),  # torchvision 0.29.2
        ("linux_x86_64", "manylinux1_x86_64"),  # torchvision 0.14.1
        ("any", "manylinux1_x86_64"),  # playwright 1.20.0
        ("macosx_11_0_arm64", "macosx_14_0_arm64"),
        ("manylinux_2_17_x86_64", "manylinux_2_17_x86_64.manylinux2014_x86_64"),
    ],
)
def test_wheels_that_were_renamed_for_the_same_machine_are_sound(
    tmp_path: Path, declared: str, file_tag: str
) -> None:
    wheel = made(tmp_path, tag=f"py3-none-{declared}")
    renamed = wheel.rename(wheel.with_name(wheel.name.replace(declared, file_tag)))
    assert list(content_checks.wheel_problems(renamed)) == []
    assert content_checks.renamed_platform(renamed).startswith(
        f"WHEEL says py3-none-{declared}, the file's name "
    )


@pytest.mark.parametrize(
    ("declared", "file_tag"),
    [("linux_x86_64", "any"), ("linux_x86_64", "linux_aarch64"), ("win_amd64", "manylinux1_x86_64"),
     ("macosx_11_0_x86_64", "macosx_11_0_arm64")],
)  # fmt: skip
def test_wheels_that_were_renamed_for_another_machine_have_a_problem(
    tmp_path: Path, declared: str, file_tag: str
) -> None:
    wheel = made(tmp_path, tag=f"py3-none-{declared}")
    renamed = wheel.rename(wheel.with_name(wheel.name.replace(declared, file_tag)))
    (clause,) = content_checks.wheel_problems(renamed)
    assert clause == f"WHEEL says py3-none-{declared}, the file's name py3-none-{file_tag}"


@pytest.mark.parametrize(
    ("declared", "problems"),
    [("1", 0), ("01", 0), ("2", 1), ("0", 1), ("1a", 1)],
)
def test_a_build_number_may_begin_with_zeros(tmp_path: Path, declared: str, problems: int) -> None:
    def declare(members: Members) -> None:
        old = members[f"{INFO}/WHEEL"]
        members[f"{INFO}/WHEEL"] = old + f"Build: {declared}\n".encode()
        members[f"{INFO}/RECORD"] = b""

    wheel = made(tmp_path, tag="01-py3-none-any", change=declare)
    clauses = [clause for clause in content_checks.wheel_problems(wheel) if "says build" in clause]
    assert len(clauses) == problems


def test_a_record_that_is_not_text_is_refused(tmp_path: Path) -> None:
    wheel = made(tmp_path, change=lambda members: members.update({f"{INFO}/RECORD": b"\xff,,\n"}))
    with refused("damaged-wheel"):
        list(content_checks.wheel_problems(wheel))


def test_a_record_without_sizes_is_sound(tmp_path: Path) -> None:
    """The specification allows that sizes are left out, and that hashes are padded."""

    def strip_sizes(members: Members) -> None:
        lines = []
        for line in members[f"{INFO}/RECORD"].decode().splitlines():
            path, digest, _size = line.split(",")
            padding = "=" if digest else ""
            lines.append(f"{path},{digest}{padding},\n")
        members[f"{INFO}/RECORD"] = "".join(lines).encode()

    assert list(content_checks.wheel_problems(made(tmp_path, change=strip_sizes))) == []
