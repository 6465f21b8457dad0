"""What may drain: findings that ask for an action of their own, written by hand, and what never drains.

The page of each suite has the action of its checks; a test compares it with the code.
"""

from __future__ import annotations

import ast
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpucluster import suites
from pytest_gpucluster.core.check import CHECKS, Action, Advisory, Finding, conclude, with_contention
from pytest_gpucluster.core.errors import NotApplicable, NotAvailable
from pytest_gpucluster.core.registry import import_checks
from pytest_gpucluster.drain.policy import NAMES, reaches
from pytest_gpucluster.plugin.drain import DrainOptions, DrainPlugin
from pytest_gpucluster.report.result import read_result
from pytest_gpucluster.report.run_model import read_run

if TYPE_CHECKING:
    from collections.abc import Iterator

VALUES = ("configure", "monitor", "reset gpu", "reboot", "drain", "return to vendor")


@pytest.fixture(scope="module")
def registered() -> dict[str, str]:
    """Return check -> action of every check of every module."""
    import_checks()
    return {name: about.action.value for name, about in CHECKS.items()}


def test_the_actions_from_mild_to_hard() -> None:
    assert tuple(action.value for action in Action) == VALUES
    assert {name: action.value for name, action in NAMES.items()} == {
        "reset-gpu": "reset gpu",
        "reboot": "reboot",
        "drain": "drain",
        "return-to-vendor": "return to vendor",
    }  # of --drain-min-action: the repairs


@pytest.mark.parametrize("least", VALUES)
@pytest.mark.parametrize("action", VALUES)
def test_an_action_reaches_its_own_class_and_milder_ones(action: str, least: str) -> None:
    expected = action not in VALUES[:2] and VALUES.index(action) >= VALUES.index(least)
    assert reaches(Action(action), Action(least)) is expected


@pytest.mark.parametrize("action", ["", "explode", "DRAIN", "Drain", " drain", "reset-gpu"])
def test_an_unknown_action_never_drains(action: str) -> None:
    event = {"verdicts": [{"outcome": "failed", "action": action, "findings": [{"part": "x"}]}]}
    (verdict,) = read_result(event).verdicts
    assert verdict.action is Action.MONITOR
    assert not any(reaches(verdict.action, least) for least in Action)


# --- which checks may take a node out of service

# Every check that may take a node out of service, with all repairs that it or one of its findings asks for, written by hand. A
# check that is added here needs `never_healthy`: one sentence why no healthy node under any site's configuration fails so.
REPAIRS: dict[str, set[str]] = {
    "rdma.bandwidth": {"drain"},
    "burnin.copies": {"drain"},
    "burnin.corruption": {"return to vendor"},
    "burnin.gpu_memory": {"return to vendor"},
    "burnin.counters": {"drain"},
    "burnin.cpu": {"return to vendor"},
    "burnin.dcgm": {"reset gpu", "drain"},
    "burnin.matmul": {"drain"},
    "burnin.memory": {"return to vendor"},
    "burnin.memory_bandwidth": {"reset gpu"},
    "burnin.nccl": {"drain"},
    "burnin.peer": {"drain"},
    "burnin.storage": {"drain"},
    "burnin.survived": {"drain"},
    "burnin.temperature": {"drain"},
    "burnin.xid": {"reset gpu", "reboot", "drain"},
    "fabric.counters": {"drain"},
    "fabric.hca_count": {"drain"},
    "fabric.port_state": {"drain"},
    "fabric.rate": {"drain"},
    "gpu.count": {"reset gpu", "drain"},
    "gpu.driver": {"reboot"},
    "gpu.ecc_aggregate": {"return to vendor"},
    "gpu.ecc_volatile": {"reset gpu"},
    "gpu.fabric_state": {"reboot"},
    "gpu.inforom": {"return to vendor"},
    "gpu.memory": {"return to vendor"},
    "gpu.nvlink_errors": {"drain"},
    "gpu.nvlink_state": {"drain"},
    "gpu.p2p": {"drain"},
    "gpu.pcie_gen": {"drain"},
    "gpu.pcie_width": {"drain"},
    "gpu.recovery_action": {"reset gpu", "reboot", "drain"},
    "gpu.remapped_pending": {"reset gpu"},
    "gpu.remapped_rows": {"return to vendor"},
    "gpu.retired_pages": {"reset gpu", "return to vendor"},
    "gpu.temperature": {"drain"},
    "gpu.throttle": {"drain"},
    "gpu.topology": {"drain"},
    "gpu.xid": {"reset gpu", "reboot", "drain"},
    "nccl.bandwidth": {"drain"},
    "nccl.pairs": {"drain"},
    "os.kernel_log": {"reboot"},  # and the actions in kit/node/data/kernel-lines.yaml
    "os.memory": {"return to vendor"},
    "os.mount_response": {"reboot"},
    "os.responds": {"reboot", "drain"},
    "os.root_writable": {"drain"},
    "os.systemd": {"reboot"},
    "os.taint": {"reboot"},
    "slurm.responding": {"drain"},
    "storage.integrity": {"drain"},
    "training.replay": {"drain"},
}


# They ask for a repair only where an entry of `known`, which a person wrote, does
OF_A_PERSON = {"controller.errors", "controller.node_errors", "controller.reported"}

# The same for what is no part of a check: where the source names repairs, and which.
ELSEWHERE = {
    "alone.py": ["drain"],  # compared with: a node alone below its hard limit
    "stage.py": ["drain"],  # of nodes that are lost during a measurement, or whose own sums are wrong
}


SOURCE = Path(suites.__file__).parents[1]
CHECK_FILES = [
    path
    for path in sorted(
        [*SOURCE.glob("suites/**/*.py"), *SOURCE.glob("kit/**/*.py"), SOURCE / "core" / "majority.py"]
    )
    if "core.check import" in path.read_text() and path.name not in ELSEWHERE
]


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts)


class Source:
    """The modules of the checks as trees: which actions the code of a check names, with all that it uses."""

    def __init__(self) -> None:
        self.defined: dict[tuple[str, str], ast.stmt] = {}
        self.imported: dict[tuple[str, str], tuple[str, str]] = {}  # '' as name: the module itself
        self.modules = {module_of(path): path for path in CHECK_FILES}
        for module, path in self.modules.items():
            for node in ast.parse(path.read_bytes()).body:
                self.read(module, node)
        self.checks = {name: key for key, node in self.defined.items() for name in self.named(node)}
        self.parts = {key: list(own_parts(node)) for key, node in self.defined.items()}

    def read(self, module: str, node: ast.stmt) -> None:
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                whole, name = f"{node.module}.{alias.name}", alias.asname or alias.name
                is_module = whole in self.modules
                self.imported[module, name] = (whole, "") if is_module else (node.module or "", alias.name)
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            self.defined[module, node.name] = node
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = (part for target in targets for part in ast.walk(target) if isinstance(part, ast.Name))
            self.defined.update({(module, part.id): node for part in names})

    @staticmethod
    def named(node: ast.stmt) -> list[str]:
        """Return the names of @check(NAME, ...) above a function."""
        found = node.decorator_list if isinstance(node, ast.FunctionDef) else []
        return [ast.literal_eval(one.args[0]) for one in found if isinstance(one, ast.Call) and is_check(one)]

    def own(self, check: str) -> set[str]:
        """Return the actions that the code of a check names, those above the function itself left out."""
        module, name = self.checks[check]
        callers = [  # one that judges what the check found, as os.responds
            (other, caller)
            for (other, caller), node in self.defined.items()
            if other == module and isinstance(node, ast.FunctionDef) and not self.named(node)
            if any(isinstance(part, ast.Name) and part.id == name for part in self.parts[other, caller])
        ]
        seen: set[tuple[str, str]] = set()
        return set().union(*(self.reached(key, seen) for key in [(module, name), *callers]))

    def reached(self, key: tuple[str, str], seen: set[tuple[str, str]]) -> set[str]:
        module, _ = key
        if key in seen or key not in self.defined or module.endswith("core.check"):
            return set()
        seen.add(key)
        found: set[str] = set()
        given = parameters(self.defined[key])  # a fact may have the name of a check
        for part in self.parts[key]:
            if isinstance(part, ast.Name) and part.id in given:
                continue
            if isinstance(part, ast.Name):
                found |= self.reached(self.imported.get((module, part.id), (module, part.id)), seen)
            elif isinstance(part, ast.Attribute) and isinstance(part.value, ast.Name):
                other, name = self.imported.get((module, part.value.id), ("", ""))
                found |= self.reached((other, part.attr), seen) if not name else set()
                found |= {Action[part.attr].value} if is_action(part) else set()
        return found


def parameters(node: ast.stmt) -> set[str]:
    return (
        {one.arg for one in ast.walk(node.args) if isinstance(one, ast.arg)}
        if isinstance(node, ast.FunctionDef)
        else set()
    )


def is_check(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "check"


def is_action(node: ast.AST) -> bool:
    """Say whether this is Action.MEMBER."""
    if not isinstance(node, ast.Attribute) or not isinstance(node.value, ast.Name):
        return False
    return node.value.id == "Action" and node.attr in Action.__members__


def own_parts(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the names and attributes of a definition without those in @check(...)."""
    for part in ast.iter_child_nodes(node):
        if isinstance(part, (ast.Name, ast.Attribute)):
            yield part
        if not (isinstance(part, ast.expr) and is_check(part)):
            yield from own_parts(part)


@pytest.fixture(scope="module")
def source() -> Source:
    return Source()


def test_the_table_lists_exactly_the_checks_that_may_take_a_node_out_of_service(
    registered: dict[str, str], source: Source
) -> None:
    assert source.checks.keys() == registered.keys()
    repairs = {action.value for action in Action if action.is_repair}
    found = {name: (source.own(name) | {action}) & repairs for name, action in registered.items()}
    assert {name: actions for name, actions in found.items() if actions} == REPAIRS


@pytest.mark.usefixtures("registered")
def test_each_of_these_checks_states_in_a_sentence_why_no_healthy_node_fails_so() -> None:
    stated = {name: about.never_healthy for name, about in CHECKS.items() if about.never_healthy}
    assert stated.keys() == REPAIRS.keys() | OF_A_PERSON
    for name, sentence in stated.items():
        assert 40 < len(sentence) < 300, name
        assert not sentence.endswith("."), name  # the reference makes it a sentence


def test_what_is_no_check_names_the_repairs_of_the_table() -> None:
    found = {}
    for path in SOURCE.rglob("*.py"):
        text = path.read_bytes()
        parts = ast.walk(ast.parse(text)) if b"Action." in text else ()
        named = {part.attr for part in parts if isinstance(part, ast.Attribute) and is_action(part)}
        repairs = sorted((Action[name].value for name in named if Action[name].is_repair), key=VALUES.index)
        if repairs and path not in CHECK_FILES and "examples" not in path.parts:
            found[path.name] = repairs
    assert found == ELSEWHERE


# --- what the plugin takes for grounds


def drainage(least: Action) -> Any:
    """Return what --drain registers, without a Slurm behind it."""
    absent: Any = None  # it acts on no node, as in a worker
    options = DrainOptions(mode="on", retries=1, budget=absent, least=least, resume=False)
    return DrainPlugin(absent, absent, absent, options)


def record(*found: Any, action: Action = Action.DRAIN, node: str = "gpu01") -> dict[str, Any]:
    verdict = conclude("gpu.x", found, cause="", hint="", action=action, never_healthy="made")
    return {"node": node, "check": "gpu.x", "verdicts": [verdict.as_dict()]}


BAD, WARNING = Finding("GPU 1", "1", "2"), Advisory("GPU 1", "1", "2")
MILD = Finding("GPU 2", "1", "2", Action.MONITOR)


@pytest.mark.parametrize("least", [action for action in Action if action.is_repair])
@pytest.mark.parametrize(
    ("found", "action"),
    [
        ((WARNING,), Action.VENDOR),
        ((NotAvailable("no right"), WARNING), Action.VENDOR),
        ((NotApplicable("no MIG"),), Action.VENDOR),
        ((), Action.VENDOR),
        ((BAD,), Action.MONITOR),
        ((BAD,), Action.CONFIGURE),
        ((BAD, WARNING), Action.MONITOR),
        ((MILD,), Action.VENDOR),
        ((MILD, WARNING), Action.VENDOR),
    ],
)
def test_what_never_drains(found: tuple[Any, ...], action: Action, least: Action) -> None:
    asked = drainage(least)
    assert not asked._grounds(SimpleNamespace(gpucluster=record(*found, action=action)))


@pytest.mark.parametrize("least", [action for action in Action if action.is_repair])
def test_a_finding_drains_from_the_requested_class_on(least: Action) -> None:
    asked = drainage(least)
    for action in Action:
        hard = action.is_repair and list(Action).index(action) >= list(Action).index(least)
        alone = SimpleNamespace(gpucluster=record(BAD, WARNING, action=action))
        beside = SimpleNamespace(
            gpucluster=record(MILD, Finding("GPU 3", "1", "2", action), action=Action.MONITOR)
        )
        assert asked._grounds(alone) is hard
        assert asked._grounds(beside) is hard


def test_a_failure_of_no_single_node_never_drains() -> None:
    whole = SimpleNamespace(gpucluster=record(BAD, node=""))
    assert not drainage(Action.DRAIN)._grounds(whole)
    assert not drainage(Action.DRAIN)._grounds(SimpleNamespace())


def test_an_error_is_no_grounds_and_keeps_a_drained_node_drained() -> None:
    """A fixture that broke says nothing of the node: only a verdict in the call does."""
    ends = [
        ("error", record(BAD)),
        ("error", record(BAD)),
        ("not checked", record(BAD)),
        ("passed", record(WARNING)),
        ("failed", record(BAD, action=Action.MONITOR)),
    ]
    events = [{"event": "result", "outcome": end, "nodeid": "x", **found} for end, found in ends]
    asked = drainage(Action.DRAIN)
    asked._read(read_run([*events, {**events[0], "node": ""}, {**events[0], "event": "rerun"}]))
    assert asked._failed == {}
    assert asked._worse == {"gpu01": ["gpu.x", "gpu.x"]}  # the two errors; a failure to be watched is none
    assert asked._ends == {"gpu01": {"gpu.x": ["error", "error", "not checked", "passed", "failed"]}}
    asked._read(read_run([{**events[0], "outcome": "failed"}]))
    assert list(asked._failed) == ["x"]
    assert asked._worse == {"gpu01": ["gpu.x"] * 3}


@pytest.mark.parametrize("action", Action)
def test_a_failure_of_other_users_or_settings_asks_for_no_drain(action: Action) -> None:
    """Where others were at work on the GPUs, the hardware alone was not measured."""
    found = with_contention(
        conclude(
            "gpu.x",
            [BAD, Finding("GPU 3", "1", "2", action)],
            cause="",
            hint="",
            action=action,
            never_healthy="made",
        ),
        "others",
    )
    told = {"node": "gpu01", "verdicts": [found.as_dict()]}
    assert not drainage(Action.RESET_GPU)._grounds(SimpleNamespace(gpucluster=told))
