"""What may be drained or resumed, and what stands in the reason: pure."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING, NamedTuple

import pytest
from drain.test_executor import Client, Log, grounds
from drain.test_executor import World as Memory
from drain.test_retest import World, killed, settled
from drain_helpers import summed

from pytest_gpucluster.cluster.slurm.inventory import NodeInfo, parse_nodes, parse_state
from pytest_gpucluster.core.finding import Action, Finding, Quantity, Quote
from pytest_gpucluster.core.part import gpu
from pytest_gpucluster.drain import (
    Budget,
    DrainExecutor,
    Grounds,
    Limits,
    Retest,
    fit_for_retest,
    read_reason,
    write_reason,
)
from pytest_gpucluster.drain.policy import (
    NAMES,
    own_reason,
    ranked,
    reaches,
    reason_for,
    why_not_drain,
    why_not_passed,
    why_not_resume,
)
from pytest_gpucluster.drain.reason import LIMIT, PART, DrainReason, deviation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

RUN = "20261121T020000-4711"
OURS = summed(f"gpucluster:gpu.count 7<8 GPUs run={RUN}")
FOREIGN = "it has another reason: "


def node(state: str = "IDLE", *flags: str, reason: str = "", name: str = "gpu01", user: str = "") -> NodeInfo:
    return NodeInfo(name, state, frozenset(flags), reason=reason, reason_user=user, partitions=("batch",))


# --- the reason


def test_the_deviation_in_short() -> None:
    for measured, expected, text in (
        (Quantity(7, "GPUs"), Quantity(8, "GPUs"), "7<8 GPUs"),
        (Quantity(17, "links", "17 active links (7 is down)"), Quantity(18, "links"), "17<18 links"),
        (Quantity(91, "C"), Quantity(85, "C"), "91>85 C"),
        (Quantity(8, "GPUs"), Quantity(8, "GPUs"), "8 GPUs, at the bound"),
        (Quantity(float("nan"), "C"), Quantity(85, "C"), "nan!=85 C"),
        (Quantity(-1.5), Quantity(2.25), "-1.5<2.25 GPU 4"),  # the part replaces a missing unit
        (Quantity(1e14 / 3), Quantity(2), "3.333e+13>2 GPU 4"),
        ("535.1.2", "550.90", "535.1.2!=550.90"),
        (Quantity(7), "550.90", "7!=550.90"),
        ("\"a\" 'b' `c` \\d |e $f", "[x]=y", "a b c d e f!=(x):y"),
        (Quote("a  b\n\tc"), "\xe9\x00\x7f", "a b c!=???"),
        ("x" * 30, "y" * 41, "x" * 30 + "!=" + "y" * 37 + "..."),
    ):
        named = "" if text.endswith("GPU 4") else "GPU 4: "
        assert deviation(Finding(gpu(4, uuid="GPU-c12"), measured, expected)) == named + text


def read(text: str, name: str = "gpu01") -> DrainReason:
    found = read_reason(name, text)
    assert found is not None
    return found


def test_a_reason_has_its_check_first_and_is_read_again() -> None:
    text = write_reason(
        "gpu01", ["gpu.count", "gpu.names", "gpu.count"], Finding("GPUs", Quantity(7), Quantity(8)), RUN
    )
    assert text == f"gpucluster:gpu.count 7<8 GPUs also=gpu.names run={RUN} sum=ad70a871"
    assert read(text) == DrainReason(("gpu.count", "gpu.names"), "7<8 GPUs", RUN)


HOSTILE = (
    *("7\nNodeName=ALL State=RESUME", "7 run=of-another also=nothing", "\x1b[31m7\x07\x00", "7\u202e\u2028"),
    *("'; rm -rf / #\"`$(id)`", "7 [root@2026-11-21T08:00:00]", "x" * 100_000, "1" * 1000, "1." + "0" * 1000),
)


@pytest.mark.parametrize("hostile", HOSTILE)
def test_no_output_of_a_node_breaks_the_reason(hostile: str) -> None:
    text = write_reason("gpu01", ["gpu.count"], Finding("", hostile, hostile), RUN)
    assert (text.isascii(), text.isprintable(), len(text) <= LIMIT) == (True, True, True)
    assert not set("\"'`\\|$[]") & set(text)
    assert (read(text).checks, read(text).run) == (("gpu.count",), RUN)
    shown = f"NodeName=gpu01 State=IDLE+DRAIN Partitions=batch \n   Reason={text} [root@2026-11-21T08:53:55]\n"
    assert parse_nodes(shown)["gpu01"].reason == text


def test_a_long_list_of_checks_is_shortened_to_one_that_asks_for_more() -> None:
    short = Finding("", Quantity(1), Quantity(2))
    text = write_reason("gpu01", ["os.memory", *(f"gpu.check_number_{n}" for n in range(20))], short, RUN)
    assert (read(text).checks, len(text) <= LIMIT) == (("os.memory", "gpu.*"), True)
    wide = write_reason("gpu01", [f"suite{n}_of_long_name.what" for n in range(40)], short, RUN)
    assert read(wide).checks[1:] == ("*",)
    longest = write_reason("gpu01", ["x" * 500], Finding("", "y" * 500, "z" * 500), "r" * 500)
    y, z = "y" * (PART - 3), "z" * (PART - 3)
    assert longest == summed(f"gpucluster:{'x' * 80} {y}...!={z}... run={'r' * 48}")
    assert (len(longest), read(longest).repair) == (LIMIT - 15, "")
    most = Finding("p" * 500, Quantity(-1.123456789012e-300, "u" * 500), Quantity(2e300 / 7, "u" * 500))
    digits = write_reason("gpu01", ["x" * 500, "y" * 500], most, "r" * 500)
    assert f" also=* run={'r' * 48} sum=" in digits
    assert len(digits) <= LIMIT


@pytest.mark.parametrize("over", [0, 1])
def test_the_further_checks_are_exact_as_long_as_slurms_accounting_keeps_them(over: int) -> None:
    """slurmdbd keeps 255 bytes of a reason (TINYTEXT)."""
    start, tail = "gpucluster:gpu.count 7<8 GPUs", f" run={RUN} sum=12345678"
    room = 255 - len(start) - len(tail) - len(" also=os.a,")
    other = "gpu." + "x" * (room - len("gpu.") + over)
    text = write_reason(
        "gpu01", ["gpu.count", "os.a", other], Finding("", Quantity(7, "GPUs"), Quantity(8, "GPUs")), RUN
    )
    assert text == summed(f"{start} also={'os.*,gpu.*' if over else f'os.a,{other}'} run={RUN}")
    assert len(text) == 255 or over


# with a right sum, but not as write_reason writes it
WRONG_REASONS = (
    *("gpu.* 1<2 run=r", "gpu.count run=r", "gpu.count 1=2 run=r", "gpu.count 1<2\nx run=r", " 1<2 run=r"),
    *("gpu.count 1<2\x7f run=r", "gpu.count 1<2\x1f run=r", "gpu.count 1<2 also=x also=y run=r"),
    *("gpu.count 1<2 also=,a run=r", "gpu.count 1<2 also=a,*,b run=r", "gpu.count 1<2 run=q run=r"),
    *("gpu.count 1<2 run=", "gpu.count 1<2 run=r x", "gpu,count 1<2 run=r"),
)


def test_what_is_read_of_a_reason() -> None:
    for text, reason in (
        ("gpu.count a b!=c ~ run=r", DrainReason(("gpu.count",), "a b!=c ~", "r")),
        ("gpu.count 1<2 also=* run=r-1_2.3", DrainReason(("gpu.count", "*"), "1<2", "r-1_2.3")),
        ("a-b_c.D9 1<2 also=a,b.*,c run=r", DrainReason(("a-b_c.D9", "a", "b.*", "c"), "1<2", "r")),
    ):
        assert read(summed(f"gpucluster:{text}")) == reason
    for text in (*(f"gpucluster:{wrong}" for wrong in WRONG_REASONS), "xgpucluster:gpu.count 1<2 run=r"):
        assert read_reason("gpu01", summed(text)) is None


EDITED = (
    OURS.replace("GPUs", "GPUs - bob: keep out, ticket 4711"),
    *(OURS.replace("7<8", "6<8"), OURS.replace(RUN, RUN[:-1] + "2"), OURS.replace(" run=", " also=* run=")),
    *(OURS.replace(" run=", "  run="), OURS[:-1] + ("0" if OURS[-1] != "0" else "1"), OURS[:-1]),
    *(OURS.upper(), OURS + "\n", " " + OURS),
    OURS.rpartition(" sum=")[0],  # as earlier versions wrote it, or a hand does
    OURS + " : gres/gpu count reported lower than configured (7 < 8)",
    *(OURS + " : Not responding - bob: keep out", OURS + " : bob: Not responding"),
)


@pytest.mark.parametrize("edited", EDITED)
def test_a_reason_that_a_person_has_edited_is_that_persons(edited: str) -> None:
    assert read_reason("gpu01", OURS) is not None
    assert read_reason("gpu01", edited) is None
    drained = node("IDLE", "DRAIN", reason=edited)
    assert own_reason(drained) is None
    assert why_not_drain(drained) == f'{FOREIGN}"{edited}"'
    assert not fit_for_retest(drained)


def test_a_reason_concerns_the_checks_that_it_names() -> None:
    for patterns, check, concerned in (
        (("gpu.count",), "gpu.count", True),
        (("gpu.count",), "gpu.counts", False),
        (("os.x", "gpu.*"), "gpu.count", True),
        (("gpu.*",), "gpus.count", False),
        (("*",), "anything", True),
    ):
        assert DrainReason(patterns, "", "").concerns(check) is concerned


def test_the_text_that_slurm_adds_for_a_node_switched_off_for_repair_keeps_the_reason_own() -> None:
    """Slurm 23.02 and later appends them (node_mgr.c, set_node_reason); 22.05 left the reason as it was."""
    reasons = ("Not responding", "reboot issued : reboot complete", "Not responding : ResumeTimeout reached")
    for added in reasons:
        text = f"{OURS} : {added}"
        assert read(text) == DrainReason(("gpu.count",), "7<8 GPUs", RUN)
        drained = node("IDLE", "DRAIN", reason=text)
        assert fit_for_retest(drained)
        assert why_not_resume(drained, text) == ""


# --- drain


def test_every_other_node_is_left_alone() -> None:
    for info, why in (
        (None, "Slurm does not know this node"),
        (node("IDLE", "DRAIN", reason="bad cable", user="bob"), f'{FOREIGN}"bad cable" by bob'),
        # ours no more: somebody undrained it and left the reason
        (node("IDLE", reason=OURS), f'{FOREIGN}"{OURS}"'),
        (node("IDLE", "DRAIN"), "another user drained it without a reason"),
        (node("DOWN", "DRAIN", reason=OURS), f"drained by gpucluster already, in run {RUN}"),
        (node("IDLE", "FAIL"), "its state is IDLE+FAIL: an administrator must check it"),
    ):
        assert why_not_drain(info) == why


VALUES = ("configure", "monitor", "reset gpu", "reboot", "drain", "return to vendor")


def test_an_action_reaches_its_own_class_and_milder_ones() -> None:
    assert tuple(action.value for action in Action) == VALUES
    repairs = ("reset-gpu", "reboot", "drain", "return-to-vendor")  # of --drain-min-action
    assert {at: it.value for at, it in NAMES.items()} == dict(zip(repairs, VALUES[2:], strict=True))
    for at, action in enumerate(VALUES):
        reached = [least for least in VALUES if reaches(Action(action), Action(least))]
        assert reached == (list(VALUES[: at + 1]) if at > 1 else []), action


def test_the_worst_go_first_and_the_unconfirmed_not_at_all() -> None:
    def of(name: str, check: str, action: Action = Action.DRAIN, unconfirmed: str = "") -> Grounds:
        return Grounds(name, check, action, Finding("", Quantity(1), Quantity(2)), unconfirmed=unconfirmed)

    rows = ranked(
        [
            of("gpu05", "gpu.count", unconfirmed="passed afresh"),
            *(of("gpu03", "gpu.names"), of("gpu03", "gpu.count"), of("gpu02", "gpu.count"), of("gpu01", "gpu.count")),
            *(of("gpu04", "gpu.a", Action.REBOOT), of("gpu04", "gpu.b", Action.VENDOR)),
        ]
    )
    assert [(name, [one.check for one in mine]) for name, mine in rows] == [
        ("gpu04", ["gpu.b", "gpu.a"]),
        ("gpu03", ["gpu.count", "gpu.names"]),
        ("gpu01", ["gpu.count"]),
        ("gpu02", ["gpu.count"]),
    ]


def test_the_budget() -> None:
    for text, nodes, allowed in (
        *(("10%", 10, 1), ("10%", 19, 1), ("10%", 0, 0), ("0%", 10, 0), ("0", 10, 0), ("3", 10, 3)),
        ("10%", 4, 1),  # at least one
        ("29%", 100, 29),  # 0.29 * 100 is below 29 in floating point
        *(("2.5%", 200, 5), ("1", 0, 1), ("1%", 199, 1), ("1%", 200, 2), ("100%", 7, 7), ("999999", 10, 999999)),
    ):
        assert Budget.parse(f" {text}\t").of(nodes) == allowed
        assert str(Budget.parse(text)) == text


WRONG = ",-1,10 %,100.%,1.x%,100.01%,999%,1000%,1e3,nan%,%,.5%,1000000,1.5,\u0663"


@pytest.mark.parametrize("text", WRONG.split(","))
def test_a_wrong_budget_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f"like 10%, not {text!r}")):
        Budget.parse(text)


def test_the_reason_of_a_node_is_of_its_hardest_grounds() -> None:
    count = Grounds("gpu01", "gpu.count", Action.DRAIN, Finding("GPUs", Quantity(7), Quantity(8)))
    memory = Grounds(
        "gpu01", "gpu.memory", Action.VENDOR, Finding("GPU 4", Quantity(3, "errors"), Quantity(0, "errors"))
    )
    assert reason_for((memory, count), RUN) == summed(
        f"gpucluster:gpu.memory GPU 4: 3>0 errors also=gpu.count repair=return-to-vendor run={RUN}"
    )
    text = reason_for([count], RUN)
    assert text == summed(f"gpucluster:gpu.count 7<8 GPUs repair=drain run={RUN}")
    # as an earlier version wrote it
    assert read(text) == replace(read(OURS), repair="drain")
    assert read(OURS).repair == ""


@pytest.mark.parametrize("action", [action for action in Action if action.is_repair])
def test_every_repair_fits_into_the_longest_reason_and_is_read_back(action: Action) -> None:
    checks = [f"{'x' * 80}.{number}" for number in range(9)]
    grounds = [Grounds("gpu01", check, action, Finding("", "y" * 99, "z" * 99)) for check in checks]
    text = reason_for(grounds, "r" * 60)
    assert len(text) <= 255
    assert read(text).repair == action.value.replace(" ", "-")


# --- resume


@pytest.mark.parametrize(
    ("count", "names", "worse", "why"),
    [
        (["passed"], ["passed"], [], ""),
        (["passed"], None, [], "gpu.names did not run"),
        (["passed"], [], [], "gpu.names did not run"),
        (["passed", "failed"], ["passed"], [], "gpu.count ended as failed"),
        (["not checked"], ["passed"], [], "gpu.count ended as not checked"),
        (["not applicable"], ["passed"], [], "gpu.count ended as not applicable"),
        (["waived"], ["passed"], [], "gpu.count ended as waived"),
        (["failed"], ["passed"], ["os.memory"], "gpu.count ended as failed"),
        (["passed"], ["passed"], ["os.a", "os.b"], "os.a did not pass either"),
    ],
)
def test_a_node_passes_what_drained_it(count: list[str], names: list[str] | None, worse: list[str], why: str) -> None:
    reason = read(summed(f"gpucluster:gpu.count 7<8 GPUs also=gpu.names run={RUN}"))
    outcomes = {"gpu.count": count, "os.x": ["failed"]} | ({} if names is None else {"gpu.names": names})
    assert why_not_passed(reason, outcomes, worse) == why  # os.x did not drain it


def test_a_shortened_list_asks_for_the_whole_suite() -> None:
    reason = read(summed(f"gpucluster:os.memory 1<2 also=gpu.* run={RUN}"))
    memory = {"os.memory": ["passed"]}
    good = {**memory, "gpu.count": ["passed"], "gpu.mig": ["not applicable"]}
    assert why_not_passed(reason, good, ()) == ""
    assert why_not_passed(reason, memory, ()) == "gpu.* did not run"
    assert why_not_passed(reason, {**good, "gpu.names": ["not checked"]}, ()) == "gpu.* ended as not checked"
    assert why_not_passed(reason, {**memory, "gpu.count": ["not applicable"]}, ()) == "gpu.* did not run"


def test_only_a_quiet_node_of_ours_goes_on_trial() -> None:
    fit = [node("IDLE", "DRAIN", *flags, reason=OURS) for flags in ((), ("MAINTENANCE", "RESERVED"))]
    unfit = [node(state, "DRAIN", reason=OURS) for state in ("ALLOCATED", "DOWN", "MIXED")]
    unfit += [node("IDLE", reason=OURS), node("IDLE", "DRAIN", reason="bad cable")]
    unfit.append(node("IDLE", "DRAIN", "COMPLETING", reason=OURS))
    assert [*map(fit_for_retest, [*fit, *unfit])] == [True] * 2 + [False] * 6


# --- every act in every state

# states in which nobody but slurmctld has changed a node that is in service
IN_SERVICE = (
    *("IDLE", "ALLOCATED", "MIXED", "IDLE+MAINTENANCE+RESERVED", "ALLOCATED+MAINT+RESERVED", "MAINT"),
    *("IDLE*", "IDLE~", "IDLE$", "IDLE+NOT_RESPONDING", "MIXED+COMPLETING", "IDLE+INVALID_REG"),
    *("IDLE+CLOUD+POWERED_DOWN", "RESERVED+CLOUD", "IDLE+PLANNED", "ALLOCATED+DYNAMIC_NORM"),
    "ALLOCATED+CLOUD+POWERING_UP+NOT_RESPONDING",
)
DOWN = ("DOWN", "DOWN*", "DOWN+NOT_RESPONDING", "DOWN+MAINTENANCE+RESERVED", "DOWN+POWERED_DOWN")
STARTING = ("UNKNOWN", "UNKNOWN*", "UNKNOWN+NOT_RESPONDING+MAINTENANCE")
TOUCHED = (
    *("FAIL", "IDLE+FAIL", "ALLOCATED+FAIL", "FAILING", "FAILING*", "IDLE+FAIL+NOT_RESPONDING", "DOWN+FAIL"),
    *("UNKNOWN+FAIL", "ERROR", "FUTURE", "IDLE+FAIL+MAINTENANCE+RESERVED", "INACTIVE", "EXTERNAL"),
    *("IDLE+EXTERNAL", "IDLE+REBOOT_REQUESTED", "MIXED+REBOOT", "IDLE@", "IDLE^", "IDLE+REBOOT_ISSUED"),
    *("DOWN+REBOOT_ISSUED", "IDLE+POWER_DOWN", "IDLE!", "ALLOCATED+POWER_DOWN", "IDLE+POWERING_DOWN", "IDLE%"),
    *("DOWN+POWERING_DOWN", "IDLE+CLOUD+MAINTENANCE+POWERING_DOWN", "IDLE+OF_A_LATER_VERSION"),
    "MIXED+FAIL+REBOOT_REQUESTED+POWER_DOWN",
)
UNCHANGED, SILENT = "ours", "ours : Not responding"
REASONS = (
    *("", UNCHANGED, "Not responding", SILENT, "of a later run", "copied", "bob: bad cable", "ours bob: keep out"),
    *("ours - ", "bob ours", "ours : reboot issued", "gpucluster:", "bob : Not responding", "ours [bob"),
    "ours [root@2026-11-21T08:53:55]        bob too",
)


class Case(NamedTuple):
    """One node, with its name, as Slurm shows it when gpucluster is about to act."""

    node: str
    state: str
    reason: str
    ours: str
    kind: str
    text: str

    @property
    def drained(self) -> bool:
        return "DRAIN" in self.state

    @property
    def info(self) -> NodeInfo:
        return NodeInfo(self.node, *parse_state(self.state), reason=self.text, partitions=("batch",))


def _cases() -> Iterable[Case]:
    kinds = {"in service": IN_SERVICE, "down": DOWN, "starting": STARTING, "touched": TOUCHED}
    rows = [(kind, state) for kind, states in kinds.items() for state in states]
    for number, ((kind, state), drain, reason) in enumerate(product(rows, ("", "+DRAIN"), REASONS)):
        node = f"gpu{number:04}"
        ours = summed("gpucluster:gpu.count 7<8 GPUs run=old", node)
        texts = {
            "of a later run": summed("gpucluster:gpu.count 7<8 GPUs run=later", node),
            "copied": summed("gpucluster:gpu.count 7<8 GPUs run=old", "gpu99"),
        }
        text = texts.get(reason) or reason.replace("ours", ours)
        yield Case(node, state + drain, reason, ours, kind, text)


CASES = tuple(_cases())


# what gpucluster may change, by what it has written last: nothing, DRAIN with its reason, or UNDRAIN for a test


def may_drain(case: Case) -> bool:
    return case.kind == "in service" and not case.drained and case.reason == ""


def may_undrain(case: Case) -> bool:
    return case.kind == "in service" and case.drained and case.reason == UNCHANGED


def may_drain_again(case: Case) -> bool:
    by_slurm = case.reason in {"Not responding", SILENT}
    known = case.kind in {"in service", "starting"} or (case.kind == "down" and by_slurm)
    return known and not case.drained and (by_slurm or case.reason in {"", UNCHANGED})


def chosen(rule: Callable[[Case], bool]) -> set[str]:
    return {case.node for case in CASES if rule(case)}


def _acted(case: Case, act: str) -> bool:
    world = Memory({case.node: case.info})
    executor = DrainExecutor(Client(world), lambda *_, **__: None, "new")  # type: ignore[arg-type] # what it needs of a client
    if act == "drain":
        executor.drain(grounds(case.node), Limits(Budget(5), {case.node: "batch"}), spared={})
    else:
        executor.resume(case.node, case.ours)
    assert world.ran or world.nodes[case.node] == case.info
    return bool(world.ran)


@pytest.mark.parametrize(("act", "rule"), [("drain", may_drain), ("resume", may_undrain)])
def test_the_executor_changes_only_untouched_nodes(act: str, rule: Callable[[Case], bool]) -> None:
    wrong = [case for case in CASES if _acted(case, act) != rule(case)]
    assert wrong == []


@pytest.fixture
def world(tmp_path: Path) -> World:
    made = World(tmp_path)
    for case in CASES:
        made.put(case.node, reason=case.ours)
    return made


def a_retest(world: World) -> Retest:
    return Retest(world, {case.node: case.ours for case in CASES}, Log().write, world.folder / "lock")  # type: ignore[arg-type] # what it needs of a client


def put_all(world: World) -> None:
    for case in CASES:
        world.put(case.node, case.state, case.text)


def assert_changed(world: World, expected: set[str], state: str) -> None:
    """Each expected node is as gpucluster sets it, each other one exactly as it was."""
    wrong = []
    for case in CASES:
        by_us = (state, case.ours if "DRAIN" in state else "")
        if world.told(case.node) != (by_us if case.node in expected else (case.state, case.text.strip())):
            wrong.append((case, world.told(case.node)))
    assert wrong == []


@pytest.mark.thorough
def test_the_shell_undrains_only_untouched_nodes(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run has read the nodes, and people change them before the shell acts."""
    real, before = world.nodes, world.nodes()
    put_all(world)
    expected = chosen(may_undrain)
    retest = a_retest(world)
    monkeypatch.setattr(world, "nodes", lambda: before)
    retest.begin()
    assert set(retest.running) == expected
    assert_changed(world, expected, "IDLE")
    monkeypatch.setattr(world, "nodes", real)
    assert retest.end() == []
    assert {case.node for case in CASES if world.told(case.node) == ("IDLE+DRAIN", case.ours)} >= expected
    assert set(retest.ended) == expected


def assert_reported(problems: list[str], expected: set[str]) -> None:
    """A node that has failed, is left and takes jobs is reported with the command."""
    assert all(" is in service: another user changed it meanwhile (" in problem for problem in problems)
    assert {problem.partition(":")[0] for problem in problems} == {
        case.node
        for case in CASES
        if case.node not in expected
        and case.info.state in {"IDLE", "ALLOCATED", "MIXED"}
        and not case.info.flags & {"DRAIN", "FAIL"}
    }


@pytest.mark.thorough
def test_the_shell_drains_again_only_untouched_nodes(world: World) -> None:
    retest = a_retest(world)
    retest.begin()
    put_all(world)
    problems = retest.end()
    expected = chosen(may_drain_again)
    assert_changed(world, expected, "IDLE+DRAIN")
    assert world.ours == []
    assert_reported(problems, expected)


def test_the_run_drains_again_only_untouched_nodes(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The shell is killed before it drains."""
    (world.folder / "bin" / "sh").write_text("#!/bin/sh\nexec cat >/dev/null\n")  # it does not act
    (world.folder / "bin" / "sh").chmod(0o755)
    monkeypatch.setattr("pytest_gpucluster.drain.retest.BEGIN_WITHIN", 0.0)
    retest, memory = a_retest(world), Memory({case.node: case.info for case in CASES})
    retest.begin()
    monkeypatch.setattr(world, "nodes", memory.show)
    monkeypatch.setattr(world, "run", memory.run)
    killed(world, retest)
    settled(retest, *(case.node for case in CASES))
    expected = chosen(may_drain_again)
    assert sorted(argv[2:] for argv in memory.ran) == sorted(
        (f"NodeName={case.node}", "State=DRAIN", f"Reason={case.ours}") for case in CASES if case.node in expected
    )
    assert_reported(retest.end(), expected)
    assert world.ran == []
