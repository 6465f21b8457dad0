"""Tables of counter-examples, one row a machine."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from counter_examples import CounterExample, assert_as_expected, name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pytest_gpucluster.core.check import Verdict

SICK = "sick: "  # before a machine that must not pass
Machines = dict["str | tuple[str, Callable[..., Verdict]]", "list[tuple[Any, ...]]"]
"""{(check, how a machine is judged): [("machine | source", what is expected, arguments ...)]}; a lambda needs no arguments."""


def examples(machines: Machines) -> tuple[CounterExample, ...]:
    """Return the counter-examples of a table."""
    return tuple(_examples(machines))


def _examples(machines: Machines) -> Iterable[CounterExample]:
    for key, rows in machines.items():
        check, *judges = (key,) if isinstance(key, str) else key
        for text, expected, *given in rows:
            machine, _, source = text.removeprefix(SICK).partition(" | ")
            judged = given[0] if given and callable(given[0]) else partial(judges[0], *given)
            yield CounterExample(check, machine, source, expected, judged, text.startswith(SICK))


def verdicts_of_a_person(examples: tuple[CounterExample, ...]) -> Callable[[CounterExample], None]:
    """Return the test that each machine gets the verdict that a person gave."""

    @pytest.mark.parametrize("example", examples, ids=name)
    def test(example: CounterExample) -> None:
        assert_as_expected(example)

    return test
