"""Whatever torchmill reads that others wrote is understood, or refused in one sentence: never a traceback."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.faults.inputs import PIECES, READERS, outcome_of
from tests.faults.tally import REFUSED, RIGHT


@pytest.mark.parametrize("name", READERS)
@settings(
    derandomize=True,
    max_examples=8,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
@given(data=st.data())
def test_no_content_makes_a_traceback(name: str, data: st.DataObject) -> None:
    content = READERS[name][1]()
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(content)))
        gone = data.draw(st.integers(0, 40))
        piece = data.draw(
            st.one_of(
                st.sampled_from(PIECES),
                st.binary(max_size=20),
                st.text(max_size=20).map(str.encode),
            )
        )
        content = content[:place] + piece + content[place + gone :]
    assert outcome_of(name, content) in {RIGHT, REFUSED}
