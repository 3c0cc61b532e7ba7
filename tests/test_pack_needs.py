"""What wheels need, in one spelling."""

from torchmill.pack import needs


def test_the_same_in_another_spelling_is_equal() -> None:
    one = needs.of(
        ">=3.8,<4", ["Typing_Extensions (>=4)", "numpy<2,>=1.20 ; python_version<'3.12'"], ["Opt_Einsum"]
    )
    other = needs.of(
        "<4, >=3.8", ['numpy >=1.20, <2; python_version < "3.12"', "typing-extensions>=4"], ["opt-einsum"]
    )
    assert one == other
    assert needs.difference(("a", one), ("b", other)) == ""


def test_each_side_of_a_difference_is_told() -> None:
    told = needs.difference(
        ("a.whl", needs.of(">=3.8", ["x"], [])), ("b.whl", needs.of(None, ["y y"], ["e"]))
    )
    assert told.startswith(
        "b.whl says otherwise than a.whl what it needs: also extra e, y y, but not Python >=3.8, x; uv asks"
    )
