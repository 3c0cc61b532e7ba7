"""Shared libraries with fatbins and wrappers that point at them, as nvcc and ld write them."""

import subprocess
from collections.abc import Sequence
from pathlib import Path

CODE = """
struct wrapper { int magic, version; const unsigned char *data; void *file; };
extern struct wrapper wrappers[] __attribute__((visibility("hidden")));
const unsigned char *fatbin(int number) { return wrappers[number].data; }
static const char *const names[] = {"zero", "one", "two"};
const char *name(int number) { return names[number]; }
"""


def shared(
    path: Path, fatbins: Sequence[bytes], *options: str, section: str = ".nv_fatbin"
) -> Path:
    """Compile a library with fatbins in a section, each with a wrapper."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [f'.section {section},"a"', ".balign 8"]
    for number, content in enumerate(fatbins):
        (path.parent / f"{number}.fatbin").write_bytes(content)
        lines.append(f'fatbin{number}: .incbin "{path.parent}/{number}.fatbin"')
    lines += [
        '.section .nvFatBinSegment,"aw"',
        ".balign 8",
        ".globl wrappers",
        ".hidden wrappers",
        "wrappers:",
    ]
    lines += [f".long 0x466243b1, 1\n.quad fatbin{number}, 0" for number in range(len(fatbins))]
    lines.append('.section .note.GNU-stack,"",@progbits')
    (path.parent / "fatbins.s").write_text("\n".join(lines) + "\n")
    (path.parent / "code.c").write_text(CODE)
    sources = [path.parent / "fatbins.s", path.parent / "code.c"]
    subprocess.run(["gcc", "-shared", "-fPIC", "-O1", *options, "-o", path, *sources], check=True)
    for file in (*sources, *path.parent.glob("*.fatbin")):
        file.unlink()
    return path
