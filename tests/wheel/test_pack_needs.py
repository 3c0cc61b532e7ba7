"""What wheels need, in one spelling."""

from torchmill.wheel.pack import metadata


def test_the_same_in_another_spelling_is_equal() -> None:
    one = metadata.declared_needs(
        ">=3.8,<4", ["Typing_Extensions (>=4)", "numpy<2,>=1.20 ; python_version<'3.12'"], ["Opt_Einsum"]
    )
    other = metadata.declared_needs(
        "<4, >=3.8", ['numpy >=1.20, <2; python_version < "3.12"', "typing-extensions>=4"], ["opt-einsum"]
    )
    assert one == other
    assert metadata.needs_difference(("a", one), ("b", other)) == ""


def test_each_side_of_a_difference_is_told() -> None:
    told = metadata.needs_difference(
        ("a.whl", metadata.declared_needs(">=3.8", ["x"], [])),
        ("b.whl", metadata.declared_needs(None, ["y y"], ["e"])),
    )
    assert told.startswith(
        "b.whl says otherwise than a.whl what it needs: also extra e, y y, but not Python >=3.8, x; uv asks"
    )
