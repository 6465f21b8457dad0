"""Each check that may take a node out of service has counter-examples beside its tests (docs/how-it-decides.md)."""

from __future__ import annotations

import importlib.util
import sys
from collections import Counter
from functools import cache
from typing import TYPE_CHECKING

from counter_examples import CONFIGURE, MONITOR, STAYS, CounterExample
from paths import ROOT

from pytest_gpucluster.core.check import CHECKS, Action
from pytest_gpucluster.core.registry import import_checks

if TYPE_CHECKING:
    from collections.abc import Iterator

LEAST = 3
THREE_OF_ALL = ("os.", "slurm.")  # suites whose every check has as many


@cache
def examples() -> tuple[CounterExample, ...]:
    return tuple(_tables())


def _tables() -> Iterator[CounterExample]:
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        if "\nCOUNTER_EXAMPLES" not in path.read_text():
            continue
        spec = importlib.util.spec_from_file_location(f"examples_of_{path.parent.name}_{path.stem}", path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module  # dataclasses look it up
        spec.loader.exec_module(module)
        yield from module.COUNTER_EXAMPLES


def test_three_healthy_machines_and_a_sick_one_were_considered_for_each_check() -> None:
    import_checks()
    healthy = Counter(one.check for one in examples() if not one.sick)
    sick = {one.check for one in examples() if one.sick}
    repairs = {name for name, about in CHECKS.items() if about.never_healthy}
    needed = [name for name in CHECKS if name in repairs or name.startswith(THREE_OF_ALL)]
    assert {name: healthy[name] for name in needed if healthy[name] < LEAST} == {}
    assert [name for name in needed if name not in sick] == []
    assert {one.check for one in examples()} <= CHECKS.keys()


def test_a_healthy_machine_and_a_sick_one_were_considered_for_each_check_that_can_fail_a_run() -> None:
    import_checks()
    healthy, sick = ({one.check for one in examples() if one.sick is it} for it in (False, True))
    monitoring = {name for name, about in CHECKS.items() if about.action is Action.MONITOR}
    assert sorted(monitoring - healthy) == []
    assert sorted(monitoring - sick) == []


def test_a_healthy_machine_fails_no_check_whose_only_action_is_monitor() -> None:
    """Such a finding makes the run NOT ACCEPTED. A check that may also repair uses `monitor` for what it cannot decide."""
    import_checks()
    only = {it for it, about in CHECKS.items() if about.action is Action.MONITOR and not about.never_healthy}
    found = [one for one in examples() if not one.sick and one.check in only]
    assert [(one.check, one.machine) for one in found if one.expected not in STAYS] == []


def test_no_healthy_machine_is_taken_out_of_service_and_each_states_its_source() -> None:
    for one in examples():
        assert one.sick or one.expected in STAYS | {CONFIGURE, MONITOR}, one
        assert one.machine, one
        assert one.source, one
