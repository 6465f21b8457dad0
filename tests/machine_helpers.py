"""Tables of counter-examples, one row a machine."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from counter_examples import CounterExample
from suite_helpers import considered

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_gpucluster.core.check import Verdict

verdicts_of_a_person = considered
SICK = "sick: "  # before a machine that must not pass
Machines = dict["str | tuple[str, Callable[..., Verdict]]", "list[tuple[Any, ...]]"]
"""{(check, how a machine is judged): [("machine | source", what is expected, arguments ...)]}; a lambda needs no arguments."""


def examples(machines: Machines) -> tuple[CounterExample, ...]:
    """Return the counter-examples of a table."""
    found = []
    for key, rows in machines.items():
        check, *judges = (key,) if isinstance(key, str) else key
        for text, expected, *given in rows:
            machine, _, source = text.removeprefix(SICK).partition(" | ")
            judged = given[0] if given and callable(given[0]) else partial(judges[0], *given)
            found.append(CounterExample(check, machine, source, expected, judged, text.startswith(SICK)))
    return tuple(found)
