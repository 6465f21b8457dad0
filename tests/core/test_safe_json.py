"""JSON of other programs: whatever is wrong with it is a ValueError."""

from __future__ import annotations

import pytest

from pytest_gpucluster.core import safe_json


@pytest.mark.parametrize("text", ["[" * 200_000, '{"a":' * 200_000, "[1", "", "x"])
def test_nesting_that_is_too_deep_is_a_value_error_as_every_other_fault(text: str) -> None:
    with pytest.raises(ValueError, match=r"nested too deeply|char"):
        safe_json.loads(text)
    with pytest.raises(ValueError, match=r"nested too deeply|char"):
        safe_json.raw_decode(text, 0)
