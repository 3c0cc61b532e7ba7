"""Print how the text of a Python project reads: `python tools/readability.py [FOLDER|FILE …]`.

Without a folder, those of this repository that users run. With checkouts of other projects, the
figures stand side by side. They are alarms and no gates: the judge is a reader who has not seen the
file. `--names` lists the vague names with their places.
"""

import argparse
import ast
import io
import re
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
OWN = (
    "torchmill",
    "packages/millguard/src",
    "packages/millpress/src",
    "noxfile.py",
    "tasks.py",
)
# Pronouns, participles and question words, which say nothing of the value that they name.
VAGUE_NAMES = frozenset(
    [
        "around",
        "asked",
        "beside",
        "both",
        "each",
        "every",
        "everything",
        "found",
        "given",
        "heard",
        "here",
        "how",
        "instead",
        "kept",
        "known",
        "lacking",
        "left",
        "lent",
        "less",
        "lying",
        "made",
        "meant",
        "mine",
        "more",
        "near",
        "named",
        "one",
        "others",
        "ours",
        "own",
        "said",
        "shown",
        "such",
        "taken",
        "theirs",
        "there",
        "told",
        "under",
        "wanted",
        "way",
        "ways",
        "what",
        "where",
        "which",
        "who",
        "why",
    ]
)
LAYOUT_TOKENS = {
    tokenize.COMMENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
    tokenize.INDENT,
    tokenize.NEWLINE,
    tokenize.NL,
}
COMPREHENSIONS = (ast.DictComp, ast.GeneratorExp, ast.ListComp, ast.SetComp)
DOCUMENTED = (ast.AsyncFunctionDef, ast.ClassDef, ast.FunctionDef, ast.Module)
FORMAT = "{:28} {:>7} {:>8} {:>6} {:>7} {:>9} {:>6} {:>6} {:>6} {:>6} {:>6}"
HEADINGS = (
    "",
    "lines",
    "tokens",
    "t/line",
    "vague %",
    "comment %",
    "compr",
    "cond",
    "pack",
    "where",
    "what",
)


@dataclass
class TextFigures:
    """The counts of some files together."""

    counts: Counter[str] = field(default_factory=Counter)
    vague_places: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))

    def add_file(self, path: Path) -> None:
        """Count a file. One that is no Python of today is left out."""
        text = path.read_text("utf-8", errors="replace")
        try:
            tree = ast.parse(text)
        except SyntaxError:
            return
        lines = text.splitlines()
        self.counts["lines"] += len(lines)
        self.counts["comments"] += sum(line.lstrip().startswith("#") for line in lines)
        prose, documented_lines = _read_docstrings(tree)
        prose += self._count_tokens(text, documented_lines)
        self._count_words(" ".join(prose))
        self._count_nodes(tree, path)

    def row(self, label: str) -> str:
        """Return the figures as a line of the table."""
        counts = self.counts
        code = counts["code lines"] or 1
        words = counts["words"] or 1
        return FORMAT.format(
            label[-28:],
            f"{counts['lines']:,}",
            f"{counts['tokens']:,}",
            f"{counts['tokens'] / code:.1f}",
            f"{100 * counts['vague names'] / (counts['names'] or 1):.1f}",
            f"{100 * counts['comments'] / (counts['lines'] or 1):.1f}",
            f"{1000 * counts['comprehensions'] / code:.0f}",
            f"{1000 * counts['conditionals'] / code:.0f}",
            f"{1000 * counts['packings'] / code:.1f}",
            f"{1000 * counts['where'] / words:.1f}",
            f"{1000 * counts['what'] / words:.1f}",
        )

    def _count_tokens(self, text: str, documented_lines: set[int]) -> list[str]:
        """Count tokens and the lines that have code; return the comments."""
        comments = []
        code_lines: set[int] = set()
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT and "noqa" not in token.string:
                comments.append(token.string.lstrip("# "))
            if token.type in LAYOUT_TOKENS or token.start[0] in documented_lines:
                continue
            self.counts["tokens"] += 1
            code_lines.update(range(token.start[0], token.end[0] + 1))
        self.counts["code lines"] += len(code_lines)
        return comments

    def _count_words(self, prose: str) -> None:
        words = re.findall(r"[\w'-]+", prose.lower())
        self.counts["words"] += len(words)
        for word in ("where", "what"):
            self.counts[word] += words.count(word)

    def _count_nodes(self, tree: ast.Module, path: Path) -> None:
        for node in ast.walk(tree):
            name = _bound_name(node)
            if name:
                self.counts["names"] += 1
                if name in VAGUE_NAMES:
                    self.counts["vague names"] += 1
                    line = getattr(node, "lineno", 0)
                    self.vague_places[name].append(f"{path}:{line}")
            if isinstance(node, COMPREHENSIONS):
                self.counts["comprehensions"] += 1
            elif isinstance(node, ast.IfExp):
                self.counts["conditionals"] += 1
            elif isinstance(node, ast.Assign) and _is_packing(node):
                self.counts["packings"] += 1


def _read_docstrings(tree: ast.Module) -> tuple[list[str], set[int]]:
    """Return the docstrings of a module, and the numbers of their lines."""
    texts = []
    lines: set[int] = set()
    for node in ast.walk(tree):
        text = ast.get_docstring(node) if isinstance(node, DOCUMENTED) else None
        if text and isinstance(node, DOCUMENTED):
            texts.append(text)
            statement = node.body[0]
            lines.update(range(statement.lineno, (statement.end_lineno or 0) + 1))
    return texts, lines


def _bound_name(node: ast.AST) -> str:
    """Return the name of a variable or argument that a node binds, or ""."""
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        return node.id
    return node.arg if isinstance(node, ast.arg) else ""


def _is_packing(node: ast.Assign) -> bool:
    """Tell whether an assignment is `a, b = x, y`."""
    return isinstance(node.targets[0], ast.Tuple) and isinstance(node.value, ast.Tuple)


def find_python_files(place: Path) -> Iterator[Path]:
    """Yield a file itself, or the Python files below a folder, sorted."""
    if place.is_file():
        yield place
    else:
        yield from sorted(place.rglob("*.py"))


def measure_text(places: Sequence[Path]) -> TextFigures:
    """Return the figures of files and folders together."""
    figures = TextFigures()
    for place in places:
        for path in find_python_files(place):
            figures.add_file(path)
    return figures


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("place", nargs="*", type=Path)
    parser.add_argument("--names", action="store_true", help="list the vague names with places")
    options = parser.parse_args()
    places = options.place or [ROOT / place for place in OWN]
    print(FORMAT.format(*HEADINGS))
    for place in places:
        figures = measure_text([place])
        label = place.relative_to(ROOT) if place.is_relative_to(ROOT) else place
        print(figures.row(str(label)))
        if options.names:
            for name, found_at in sorted(figures.vague_places.items()):
                print(f"    {name} {len(found_at)}: {', '.join(found_at[:4])}")
    if len(places) > 1:
        print(measure_text(places).row("together"))


if __name__ == "__main__":
    main()
