"""The command `millpress`: show, repair, pack or verify wheels."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from zipfile import ZipFile

from millpress import metadata, record_file
from millpress.errors import MillpressError
from millpress.module_checks import unread_modules
from millpress.repair import repair_wheel
from millpress.verification import verify_wheel
from millpress.wheel_file import format_tags, open_wheel, read_wheel
from millpress.wheel_writer import PackedWheel, pack_wheel

FAILED = 1  # exit code: a wheel has problems, or the command could not do its work


def show(options: argparse.Namespace) -> int:
    """Print the metadata, size and digest of wheels."""
    for path in options.wheel:
        wheel = read_wheel(path)
        print(f"{wheel.name} {wheel.version}")
        print(f"  tags      {format_tags(wheel.tags)}")
        print(f"  size      {wheel.size} bytes")
        print(f"  sha256    {wheel.sha256}")
        print(f"  python    {wheel.requires_python or 'any'}")
        for requirement in wheel.requires:
            print(f"  requires  {requirement}")
        # read_wheel has refused an archive that is damaged, so this raises no BadZipFile
        with ZipFile(path) as archive:
            files = [info for info in archive.infolist() if not info.is_dir()]
        unpacked = sum(info.file_size for info in files)
        print(f"  files     {len(files)}, {unpacked} bytes unpacked")
    return 0


def repair(options: argparse.Namespace) -> int:
    """Write repaired copies of wheels into a folder."""
    for path in options.wheel:
        repaired = repair_wheel(path, options.out, options.plat, folders=options.search)
        for library in repaired.result.bundled:
            print(f"bundled {library.source} as {library.path}")
        for note in repaired.result.notes:
            print(f"note: {note}")
        _print_packed(repaired.packed)
    return 0


def pack(options: argparse.Namespace) -> int:
    """Pack a folder into a wheel, named after its METADATA and WHEEL."""
    name = metadata.tree_file_name(options.folder)
    _print_packed(pack_wheel(options.folder, options.out / name, threads=options.threads))
    return 0


def verify(options: argparse.Namespace) -> int:
    """Print the problems of wheels; the exit code is 1 if there are any.

    A file that is missing or not a wheel has a problem, and the other files are still checked.
    Only an error that would stop each check, such as a full disk, ends the command.
    """
    exit_code = 0
    for path in options.wheel:
        problems = verify_wheel(path)
        for problem in problems:
            print(f"{path}: {problem}")
        if problems:
            exit_code = FAILED
            continue
        with open_wheel(path) as archive:
            unread = list(unread_modules(archive))
        if unread:
            modules = "extension module" if len(unread) == 1 else "extension modules"
            print(f"{path}: not read: {len(unread)} {modules} not in ELF, such as {unread[0]}")
        print(f"{path}: sound, sha256 {record_file.hash_file(path)}")
    return exit_code


def _print_packed(packed: PackedWheel) -> None:
    print(f"{packed.path}: {packed.size} bytes, sha256 {packed.sha256}")


def _positive_number(text: str) -> int:
    """Return a number of threads. Raises ArgumentTypeError if it is below one, or no number."""
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above zero")
    return int(text)


def parse_options(words: Sequence[str] | None) -> argparse.Namespace:
    """Return the options of a command line; `run` is the function of its command.

    Ends the process after `--help`, and for words that are wrong, with code 2.
    """
    parser = argparse.ArgumentParser(
        prog="millpress",
        description="Read, repair, pack and verify wheels of any size, reproducibly.",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    show_parser = commands.add_parser("show", help="print a wheel's metadata, size and digest")
    show_parser.set_defaults(run=show)

    repair_parser = commands.add_parser(
        "repair", help="bundle the libraries that the platform tag does not promise"
    )
    repair_parser.set_defaults(run=repair)
    repair_parser.add_argument(
        "--plat",
        default="auto",
        metavar="TAG",
        help="platform tag: manylinux_2_28_x86_64, linux_x86_64, macosx_11_0_arm64; "
        "default: auto, the oldest that the wheel can keep",
    )
    repair_parser.add_argument(
        "--search",
        type=Path,
        action="append",
        default=[],
        metavar="FOLDER",
        help="look for libraries here before the system's folders; may be repeated",
    )

    pack_parser = commands.add_parser("pack", help="pack a folder with a .dist-info into a wheel")
    pack_parser.set_defaults(run=pack)
    pack_parser.add_argument("folder", type=Path)
    pack_parser.add_argument(
        "--threads",
        type=_positive_number,
        help="default: one for each processor that this process may use",
    )

    verify_parser = commands.add_parser("verify", help="find contradictions in a wheel")
    verify_parser.set_defaults(run=verify)

    for command in (show_parser, repair_parser, verify_parser):
        command.add_argument("wheel", type=Path, nargs="+")
    for command in (repair_parser, pack_parser):
        command.add_argument(
            "--out", type=Path, default=Path("dist"), metavar="FOLDER", help="default: dist"
        )
    return parser.parse_args(words)


def main(words: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code; an error is one line on stderr."""
    options = parse_options(words)
    # the errors that a user can do something about; any other is a bug, and shows its traceback
    try:
        exit_code: int = options.run(options)
    except (MillpressError, OSError) as error:
        print(f"millpress: {error}", file=sys.stderr)
        return FAILED
    return exit_code


if __name__ == "__main__":
    sys.exit(main())
