"""What the figures of a text count."""

from pathlib import Path

from tools.readability import measure_text

PACKED = '''
"""Say what lies where it is wanted."""
def f(one):
    a, b = one, 2  # what
    return [each for each in a] if b else ()
'''
PLAIN = '''
"""Return the wheels."""
# Why: the order matters.
def f(wheels):
    return wheels
'''


def test_packed_text_is_counted(tmp_path: Path) -> None:
    file = tmp_path / "packed.py"
    file.write_text(PACKED)
    figures = measure_text([file])
    assert figures.counts["vague names"] == 2
    assert sorted(figures.vague_places) == ["each", "one"]
    assert figures.counts["names"] == 4
    assert (figures.counts["comprehensions"], figures.counts["conditionals"]) == (1, 1)
    assert (figures.counts["packings"], figures.counts["where"]) == (1, 1)
    assert figures.counts["what"] == 2


def test_plain_text_is_counted(tmp_path: Path) -> None:
    (tmp_path / "plain.py").write_text(PLAIN)
    (tmp_path / "broken.py").write_text("def f(:\n")
    figures = measure_text([tmp_path])
    assert figures.counts["comments"] == 1
    assert figures.counts["vague names"] == 0
    assert figures.counts["tokens"] == len(
        ["def", "f", "(", "wheels", ")", ":", "return", "wheels"]
    )
    assert "plain" in figures.row("plain")
