"""Write a draft as the file of a package: TOML, with comments on what is not sure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence

from torchmill.plan.package_draft.draft import (
    TORCH_CMAKE,
    TORCH_EXTENSION,
    PackageDraft,
    oldest_capability,
)
from torchmill.plan.package_draft.edits import escape_dollars

NOT_TRIED = "not tried"
_KINDS = {
    TORCH_EXTENSION: "torch.utils.cpp_extension compiles it",
    TORCH_CMAKE: "its build backend runs CMake",
}
_OTHER_MEMORY = "4 GiB"
_OTHER_DISK = "2 GiB"


def draft_as_toml(draft: PackageDraft) -> str:
    """Return the text of the file of a package, which the package reader accepts."""
    blocks = [
        [
            "#:schema ../schemas/package.schema.json",
            "",
            f"# Drafted by the task add, from {draft.proof}.",
            '# Lines that begin with "not sure:" are for you to look at.',
        ],
        list(_heads(draft)),
        list(_smoke(draft)),
        list(_release(draft)),
        *_rules(draft),
    ]
    doubts = [f"# not sure: {doubt}" for doubt in draft.doubts]
    for finding in draft.findings:
        doubts.append(f"# {'sure' if finding.sure else 'not sure'}: {finding}")
    if doubts:
        blocks.append(doubts)
    return "\n\n".join("\n".join(block) for block in blocks if block) + "\n"


def _heads(draft: PackageDraft) -> Iterator[str]:
    """Yield the keys about the package itself."""
    yield f"name = {_text(draft.name)}"
    yield f"session = {_text(draft.session)}  # the word in the names of its cells"
    if draft.kind:
        yield f"kind = {_text(draft.kind)}  # {_KINDS[draft.kind]}"
    else:
        yield 'after = "torch"'
        yield f'compilers = "cmake"  # not sure: {draft.proof}'
    comment = "" if draft.archive.on_index else f"  # not sure: it came from {draft.archive.origin}"
    yield f"pypi = {_text(draft.name)}{comment}"
    yield f"import_name = {_text(draft.import_name)}"
    if not draft.kind:
        yield f"memory_per_job = {_text(_OTHER_MEMORY)}  # not sure: not measured"
        yield f"disk = {_text(_OTHER_DISK)}  # not sure: not measured"
    oldest = oldest_capability(draft.capabilities)
    if oldest:
        yield f'capabilities = ">={oldest}"  # of what setup.py names, the oldest'


def _smoke(draft: PackageDraft) -> Iterator[str]:
    """Yield the lines that try a finished wheel."""
    yield "# not sure: importing it shows that it loads; add a line that computes something"
    yield f"smoke = {_list(draft.smoke)}"


def _release(draft: PackageDraft) -> Iterator[str]:
    """Yield the release, with bounds of torch that claim nothing."""
    yield "[[release]]"
    yield f"version = {_text(draft.version)}"
    yield f"torch = {_text(draft.torch)}  # not sure: {NOT_TRIED}"
    if draft.requires_python:
        yield f"python = {_text(draft.requires_python)}"
    if draft.wheel_tag:
        yield f"wheel_tag = {_text(draft.wheel_tag)}"
    if draft.archive.sha256 and draft.archive.on_index:
        yield f"sha256 = {_text(draft.archive.sha256)}"
    yield f"source = {_text(f'{draft.archive.origin}; torch: {NOT_TRIED}')}"


def _rules(draft: PackageDraft) -> Iterator[list[str]]:
    """Yield the rules, in the order of a file."""
    if draft.cpu is None and draft.cuda is not None:
        reason = f"no build without CUDA was found: {draft.cpu_failure}"
        yield _rule({"variant": "cpu"}, ["conflict = true"], reason, draft.proof)
    if draft.is_without_cuda:
        yield ["# not sure: no file of it is for CUDA: build it with `--cuda cpu`"]
    elif draft.cuda is None and draft.cpu is not None and draft.cuda_failure:
        yield [f"# not sure: whether there is a build with CUDA: {draft.cuda_failure}"]
    yield from _switches(draft)
    for name, (value, reason) in draft.settings.items():
        yield _rule({}, [f"set = {_table({name: value})}"], reason, "setup.py")
    for edit in draft.edits:
        lines = [f"prepare = [{_list(escape_dollars(edit.argv), broken=False)}]"]
        yield _rule(edit.when, lines, edit.reason, draft.proof)
    if draft.pep517 and draft.kind != TORCH_CMAKE:
        lines = ['front_end = "pep517"']
        yield _rule({}, lines, "its backend builds it", "pyproject.toml")
    if draft.requirements:
        lines = [f"requires = {_list(draft.requirements, broken=False)}"]
        yield _rule({}, lines, "its build asks for them", "pyproject.toml, setup.py")


def _switches(draft: PackageDraft) -> Iterator[list[str]]:
    """Yield the rules that lead to a build with CUDA, and to one without."""
    if draft.cuda is not None:
        if draft.cuda.variables:
            reason = "without it nothing for CUDA is compiled where no GPU answers"
            lines = [f"set = {_table(draft.cuda.variables)}"]
            yield _rule({"cuda": ">=0"}, lines, reason, draft.proof)
        if draft.cuda.nvcc_on_path:
            lines = [f"set = {_table({'PATH': '${cuda_home}/bin:${venv}/bin:${PATH}'})}"]
            reason = "setup.py looks for nvcc on PATH, and compiles for CUDA only if it is there"
            yield _rule({"cuda": ">=0"}, lines, reason, draft.proof)
    if draft.cpu is not None and draft.cpu.variables:
        lines = [f"set = {_table(draft.cpu.variables)}"]
        reason = "without it there is no build without CUDA"
        yield _rule({"variant": "cpu"}, lines, reason, draft.proof)


def _rule(when: Mapping[str, str], effects: Sequence[str], reason: str, source: str) -> list[str]:
    """Return the lines of a rule."""
    lines = ["[[rule]]"]
    if when:
        lines.append(f"when = {_table(when)}")
    return [*lines, *effects, f"reason = {_text(reason)}", f"source = {_text(source)}"]


def _text(text: str) -> str:
    """Return a text as a TOML string; what JSON escapes, TOML escapes alike."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _list(texts: Iterable[str], *, broken: bool = True) -> str:
    """Return a list of texts; with `broken`, each in a line of its own."""
    items = [_text(text) for text in texts]
    if not broken:
        return f"[{', '.join(items)}]"
    lines = "".join(f"    {item},\n" for item in items)
    return f"[\n{lines}]"


def _table(values: Mapping[str, str]) -> str:
    """Return an inline table of texts."""
    items = [f"{_key(name)} = {_text(value)}" for name, value in values.items()]
    return f"{{ {', '.join(items)} }}"


def _key(name: str) -> str:
    """Return a key, quoted if TOML needs that."""
    is_bare = name.isascii() and name.replace("_", "").replace("-", "").isalnum()
    return name if is_bare else _text(name)
