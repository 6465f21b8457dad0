"""A stock testinfra test of the 40 checks: run over SSH by testinfra itself, and unchanged by this plugin."""

from __future__ import annotations

from typing import Any

import pytest
from questions import Question, asked


@pytest.mark.parametrize("question", asked()[0], ids=lambda question: question.name)
def test_question(host: Any, question: Question) -> None:
    """The node answers as it has to."""
    assert question.right(host.run(question.command).stdout)
