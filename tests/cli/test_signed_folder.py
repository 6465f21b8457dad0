"""What a folder must be to be signed, what its manifest covers, and each way to make it state what its logs do not prove."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from campaign_helpers import ACampaign, run_campaign
from report_helpers import a_run, passing, write_reports, write_run

from pytest_gpucluster.campaign.child import sha256_of
from pytest_gpucluster.campaign.store import CampaignStore
from pytest_gpucluster.cli.signed_folder import (
    Files,
    assess,
    manifest_of,
    parse_manifest,
    signed_files,
    sums_of,
    write_manifest,
)
from pytest_gpucluster.core.errors import GpuClusterError
from pytest_gpucluster.core.finding import Metric
from pytest_gpucluster.report.history.regression import Compared, ShownComparison
from pytest_gpucluster.report.machine.events import read_log
from pytest_gpucluster.report.page import html

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

REJECTED = "Not accepted, 1 of 3 nodes failed, judged by gpu, nccl, narrowed by -m gpu"


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("run") / "20261121T020000-1").parent


@pytest.fixture
def root(tmp_path: Path, written: Path) -> Path:
    """The folder of a run of three nodes, of which gpu02 failed."""
    return shutil.copytree(written, tmp_path / "reports" / "20261121T020000-1")


def refused(root: Path, store: CampaignStore | None = None) -> str:
    with pytest.raises(GpuClusterError) as caught:
        manifest_of(root, store)
    return str(caught.value).replace(f"{root}/", "")


def change(path: Path, *pairs: tuple[str, str]) -> None:
    text = path.read_text()
    for before, after in pairs:
        assert before in text, before
        text = text.replace(before, after)
    path.write_text(text)


def without(path: Path, *words: str) -> None:
    """Remove the lines that contain one of the words."""
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(line for line in lines if not any(word in line for word in words)))


# --- a run


def test_the_manifest_is_that_of_sha256sum_and_the_verdict_that_of_the_log(root: Path) -> None:
    data, found = manifest_of(root, None)
    assert (found.subject, found.verdict) == ("cluster prod, run 20261121T020000-1", REJECTED)
    names = ["events.jsonl", "junit.xml", "metrics.prom", "record.json", "report.html", "steps/1.log"]
    assert data.decode() == "".join(f"{sha256_of(root / name)}  {name}\n" for name in names)
    assert assess(signed_files(root, data)) == found


def test_scope_and_simulated_hardware_are_named(tmp_path: Path) -> None:
    scope = {"simulated": True, "scope": {"-m": "gpu"}}
    events = a_run([passing("gpu01")], nodes=["gpu01"], start=scope)
    root = write_run(tmp_path / "run", *events).parent
    assert manifest_of(root, None)[1].verdict == (
        "Accepted, 1 of 1 node, judged by gpu, narrowed by -m gpu, SIMULATED hardware"
    )


FAILED_LINE = '"outcome": "failed", "phase"'


@pytest.mark.parametrize(
    ("edit", "why"),
    [
        pytest.param(
            lambda log: change(log, (FAILED_LINE, '"outcome": "passed", "phase"')),
            "events.jsonl: its event `finish` states passed: 3, its results are 4: lines were changed or removed",
            id="failure-becomes-pass",
        ),
        pytest.param(
            lambda log: without(log, FAILED_LINE),
            "events.jsonl: its event `finish` states failed: 1, its results are 0: lines were changed or removed",
            id="failure-removed",
        ),
        pytest.param(
            lambda log: change(log, ('"nodes": {"fit": 2, "failed": 1', '"nodes": {"fit": 3, "failed": 0')),
            "events.jsonl: its event `finish` states nodes: ",
            id="counts-of-nodes",
        ),
        pytest.param(
            lambda log: without(log, '"event": "finish"'),
            "events.jsonl: it has no event `finish`: the run did not come to its end",
            id="no-finish",
        ),
        pytest.param(
            lambda log: without(log, '"event": "nodes"'),
            "events.jsonl: it lacks the event `start` or `nodes`",
            id="no-nodes",
        ),
        pytest.param(
            lambda log: without(log, '"node": "gpu03"'),
            "events.jsonl: it has neither a result of gpu03 nor a reason why there is none",
            id="node-without-result",
        ),
        pytest.param(
            lambda log: log.write_text(log.read_text() + '{"time": 17'),
            "events.jsonl: line 10 is cut or no event: what it held is lost",
            id="cut-line",
        ),
        pytest.param(
            lambda log: change(log, ('"run": "20261121T020000-1", "event": "finish"', '"run": "x", "event": "finish"')),
            "events.jsonl: an event is of another run than the first one",
            id="line-of-another-run",
        ),
        pytest.param(
            lambda log: log.unlink(),
            "is neither the folder of one run (with one events.jsonl) nor that of a campaign that came to its end",
            id="no-log",
        ),
        pytest.param(
            lambda log: shutil.copytree(log.parent, log.with_name("other")),
            "is neither the folder of one run (with one events.jsonl) nor",
            id="another-run-inside",
        ),
    ],
)  # fmt: skip
def test_a_log_of_gaps_or_miscounts_is_unsigned(root: Path, edit: Callable[[Path], object], why: str) -> None:
    edit(root / "events.jsonl")
    assert why in refused(root)
    with pytest.raises(GpuClusterError):  # nor verified, whoever signed it
        assess(Files(root, sums_of(root)))


def test_a_version_and_a_verdict_that_are_stated_change_nothing(root: Path) -> None:
    """Version 0.3 compared less where `made_by` named another version, and printed the verdict that its record stated."""
    stated = {"format": 1, "made_by": "0.1.0", "verdict": {"outcome": "accepted", "title": "Accepted"}}
    for name in ("record.intoto.json", "steps/record-20261128T041500.json"):
        (root / name).write_text(json.dumps(stated))
        assert refused(root) == f"{name}: version 0.3 wrote it; nothing checks what it states: remove it"
        assert assess(Files(root, sums_of(root))).verdict == REJECTED
        (root / name).unlink()
    change(root / "events.jsonl", ('"pytest-gpucluster": "0.2.0"', '"pytest-gpucluster": "0.1.0"'))
    assert refused(root).startswith("report.html: states something else than events.jsonl beside it")
    write_reports(root / "events.jsonl")
    assert manifest_of(root, None)[1].verdict == REJECTED


HISTORY = '<section id="history">\n<h2>Against earlier runs</h2>\n{}</section>\n\n<section id="gaps">'
TREND = '<p class="trend"><svg viewBox="0 0 9 9" width="9" height="9" role="img" aria-label="">{}</svg></p></article>'


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        ("report.html", ">Not accepted</h1>", ">Accepted</h1>"),
        ("report.html", "</head>", "<style>#work { display: none }</style></head>"),
        ("report.html", '<section id="gaps">', HISTORY.format("<style>#record { display: none }</style>")),
        ("report.html", '<section id="gaps">', HISTORY.format("<div><details><summary>x</summary></div>")),
        ("report.html", '<section id="gaps">', HISTORY.format('</section><section id="history">')),
        ("report.html", '<section class="record', '<section id="history"><p>Accepted</p></section><section class="record'),
        ("report.html", '<section class="record', HISTORY.format("") + '</section><section class="record'),
        ("report.html", "</header>", TREND.format("").removesuffix("</article>") + "</header>"),
        ("report.html", "</article>", TREND.format("<script>1</script>")),
        ("record.json", "Not accepted", "Accepted"),
        ("junit.xml", "Not accepted", "Accepted"),
        ("junit.xml", "<testsuites", '<!DOCTYPE x [<!ENTITY a "b">]>\n<testsuites'),
        ("junit.xml", "</testsuites>", ""),
        ("metrics.prom", 'gpucluster_node_fit{cluster="prod",node="gpu02"} 0.0', 'gpucluster_node_fit{cluster="prod",node="gpu02"} 1.0'),
    ],
)  # fmt: skip
def test_a_report_that_differs_is_not_signed(root: Path, name: str, before: str, after: str) -> None:
    change(root / name, (before, after))
    assert refused(root) == (
        f"{name}: states something else than events.jsonl beside it; if another version wrote it, "
        f"`gpucluster report {root} --force` writes it again"
    )


def test_a_page_is_compared_with_all_that_its_log_states_of_earlier_runs(root: Path) -> None:
    values: dict[str, Any] = {"last_good": 3000.0, "previous": 2990.0, "values": (3001.0, None, 2990.0, 9.0)}
    rows = [
        Compared(node, Metric("bandwidth", 9.0, "GB/s", "GPU 4"), worse=node == "gpu02", note="a" * 99, **values)
        for node in ("gpu01", "gpu02")
    ]
    shown = ShownComparison("history.db", tuple(rows), last_good="x", previous="y", runs=5, note="z")
    alone, log = (root / "report.html").read_text(), root / "events.jsonl"
    lines = log.read_text().splitlines()
    event = {**json.loads(lines[-1]), "event": "compared", **asdict(shown)}
    log.write_text("\n".join([*lines, json.dumps(event), ""]))
    html.write(read_log(log), root / "report.html")
    page = (root / "report.html").read_text()
    assert page.count('<section id="history">') == 1
    assert page.count('<p class="trend">') == 1
    assert "<wbr>" in page
    assert manifest_of(root, None)[1].verdict == REJECTED
    for other in (alone, page.replace("history.db", "other.db")):
        (root / "report.html").write_text(other)
        assert refused(root).startswith("report.html: states something else")


def test_a_page_is_the_same_in_each_time_zone(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        monkeypatch.setenv("TZ", "Pacific/Chatham")
        time.tzset()
        assert manifest_of(root, None)[1].verdict == REJECTED
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda path: path.symlink_to("steps/1.log"), "x: is a link; a signed folder has none"),
        (lambda path: os.mkfifo(path), "x: is neither a plain file nor a folder"),
        (lambda path: path.with_name("x\ny").touch(), ": the name of a file has control characters: 'x\\ny'"),
        (lambda path: path.with_name("x\\y").touch(), ": the name of a file has control characters: 'x\\\\y'"),
        (lambda path: os.close(os.open(bytes(path) + b"\xff", os.O_CREAT)), ": the name of a file has control"),
    ],
)
def test_a_link_or_a_special_file_is_not_signed(root: Path, make: Callable[[Path], object], why: str) -> None:
    data, _ = manifest_of(root, None)
    make(root / "x")
    assert why in refused(root)
    with pytest.raises(GpuClusterError, match=r"is a link|is neither|control characters"):
        signed_files(root, data)


# --- after the signature


def replaced(path: Path) -> None:
    path.rename(path.parents[2] / "elsewhere")
    path.symlink_to(path.parents[2] / "elsewhere")


@pytest.mark.parametrize(
    ("edit", "why"),
    [
        (lambda root: (root / "steps" / "2.log").touch(), "steps/2.log: SHA256SUMS does not list it: it was added"),
        (lambda root: (root / "steps" / "SHA256SUMS").touch(), "steps/SHA256SUMS: SHA256SUMS does not list it"),
        (lambda root: (root / "steps" / "1.log").unlink(), "steps/1.log: is missing, and SHA256SUMS lists it"),
        (lambda root: change(root / "steps" / "1.log", ("exit 0", "exit 1")), "steps/1.log: has another sha256 than"),
        (lambda root: change(root / "events.jsonl", ("login1", "login2")), "events.jsonl: has another sha256 than"),
        (lambda root: replaced(root / "steps" / "1.log"), "steps/1.log: is a link; a signed folder has none"),
        (lambda root: replaced(root / "steps"), "steps: is a link; a signed folder has none"),
    ],
)  # fmt: skip
def test_added_lost_changed_linked_files_show(root: Path, edit: Callable[[Path], object], why: str) -> None:
    data, _ = manifest_of(root, None)
    edit(root)
    with pytest.raises(GpuClusterError) as caught:
        signed_files(root, data)
    assert str(caught.value).replace(f"{root}/", "").startswith(why)


def test_the_bytes_that_are_judged_are_those_with_the_sum(root: Path) -> None:
    """A file that is changed between the comparison and the reading gives no verdict."""
    files = signed_files(root, manifest_of(root, None)[0])
    with (root / "events.jsonl").open("a") as log:
        log.write("{}\n")
    with pytest.raises(GpuClusterError, match=r"events\.jsonl: has another sha256 than SHA256SUMS states"):
        files.content("events.jsonl")


ONE, TWO = f"{'0' * 64}  a\n", f"{'1' * 64}  b/c d\n"


@pytest.mark.parametrize(
    "text",
    [
        "",
        ONE + ONE,
        ONE + ONE.replace("0", "1"),
        TWO + ONE,
        ONE.replace("\n", "\r\n"),
        ONE + TWO[:-1],
        f"{ONE}\n",
        ONE.replace("  ", " *"),
        ONE.replace("0", "F"),
        f"\ufeff{ONE}",
    ],
)
def test_a_manifest_is_read_only_as_it_is_written(text: str, tmp_path: Path) -> None:
    sums = {"b/c d": "1" * 64, "a": "0" * 64}
    assert write_manifest(sums).decode() == ONE + TWO
    assert parse_manifest((ONE + TWO).encode(), tmp_path) == sums
    with pytest.raises(GpuClusterError, match="is not written as gpucluster writes it: it was changed"):
        parse_manifest(text.encode(), tmp_path)
    with pytest.raises(GpuClusterError, match="is not written as gpucluster writes it: it was changed"):
        parse_manifest(ONE.encode() + b"\xff", tmp_path)


@pytest.mark.parametrize("name", ["../secret", "/etc/x", "./junit.xml", "steps//1.log", "steps/../junit.xml"])
def test_a_manifest_names_no_file_outside_and_none_by_another_path(root: Path, name: str) -> None:
    (root.parent / "secret").write_text("x")
    with pytest.raises(GpuClusterError, match="is missing, and SHA256SUMS lists it"):
        signed_files(root, write_manifest({**sums_of(root), name: "0" * 64}))


# --- a campaign


@pytest.fixture(scope="module")
def run_before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("campaign")
    made = run_campaign(folder, [("gpu01", True), ("gpu02", True), ("gpu03", False)])
    made.store.close()
    return folder


@pytest.fixture
def campaign(tmp_path: Path, run_before: Path) -> Iterator[ACampaign]:
    """A campaign of three nodes, of which gpu03 failed."""
    folder = shutil.copytree(run_before, tmp_path / "campaign")
    with contextlib.closing(CampaignStore(folder / "h.db")) as store:
        yield ACampaign(folder / "reports" / "campaign-july", store)


def test_a_campaign_is_signed_as_a_whole_also_where_it_was_moved(campaign: ACampaign, tmp_path: Path) -> None:
    data, found = manifest_of(campaign.root, campaign.store)
    assert (found.subject, found.verdict) == (
        "cluster prod, campaign july",
        "REJECTED, 2 of 3 nodes fit, judged by gpu",
    )
    names = [line.split("  ", 1)[1] for line in data.decode().splitlines()]
    assert names[:3] == ["000001/20261121T020000-1/events.jsonl", "000001/20261121T020000-1/junit.xml",
                         "000001/20261121T020000-1/metrics.prom"]  # fmt: skip
    assert len(names) == 3 * 7 + 1
    moved = campaign.root.rename(tmp_path / "moved")
    assert assess(signed_files(moved, data)) == found


def fit(document: dict[str, Any]) -> None:
    """State that all is well."""
    document["verdict"] = "ACCEPTED"
    for row in document["nodes"]:
        row.update(state="fit", why="")


def of_third(document: dict[str, Any], **fields: Any) -> None:
    document["groups"][2].update(fields)


def updated(document: dict[str, Any], fields: dict[str, Any]) -> None:
    document.update(fields)


def test_a_failed_node_is_not_made_fit_by_campaign_json(campaign: ACampaign) -> None:
    """All keys from which version 0.3 took its verdict, each alone with the verdict, and all together."""
    edits: list[Callable[[dict[str, Any]], object]] = [
        lambda it: of_third(it, outcomes={"gpu03": "fit", "": "fit"}),
        lambda it: of_third(it, outcomes={}),
        lambda it: of_third(it, left=["gpu03"]),
        lambda it: of_third(it, run=""),
        lambda it: of_third(it, run="", sha256="", outcomes={"gpu03": "fit", "": "fit"}),
        lambda it: of_third(it, nodes=["gpu01"]),
        lambda it: of_third(it, suites="nccl"),
        lambda it: of_third(it, folder="000001", run="20261121T020000-1"),
        lambda it: of_third(it, ended=None),
        lambda it: it["groups"].pop(),
        lambda it: it["nodes"].pop(),
        lambda it: it.update(nodes=[]),
        lambda it: it.update(kinds=[]),
        lambda it: it.update(kinds=[{**it["kinds"][0], "larger": True}]),
        lambda it: it.update(cluster="other"),
        lambda it: it["nodes"][2].update(in_service=False, share="x"),
    ]  # fmt: skip
    path = campaign.root / "campaign.json"
    before = path.read_bytes()
    for one in [[edit] for edit in edits] + [edits[:5], edits[:2] + edits[9:11]]:
        campaign.state(fit, *one)
        with pytest.raises(GpuClusterError):  # without the history too, as `verify` has it
            assess(Files(campaign.root, sums_of(campaign.root)))
        refused(campaign.root, campaign.store)
        path.write_bytes(before)
    assert manifest_of(campaign.root, campaign.store)[1].verdict.startswith("REJECTED")


@pytest.mark.parametrize(
    ("edit", "why"),
    [
        (lambda it: it["nodes"][0].update(state="failed"), "states that gpu01 is failed; the logs of its groups say fit"),
        (lambda it: it.update(verdict="ACCEPTED"), "states ACCEPTED; by the logs of its groups the campaign is REJECTED"),
        (lambda it: it.update(problems=["link a - b"]), "states REJECTED; by the logs of its groups the campaign is REJ"),
        (lambda it: it["nodes"].pop(), "lacks the node gpu03, which group 3 has tested"),
        (lambda it: it["groups"].pop(), "events.jsonl: is the log of no group of campaign.json"),
        (lambda it: it["groups"].append(it["groups"][0]), "is not the state of a campaign: a node, a group or a kind of g"),
        (lambda it: it["nodes"].append(it["nodes"][0]), "is not the state of a campaign: a node, a group or a kind of g"),
        (lambda it: it.update(format=1), "is not the state of a campaign: another program or version wrote it"),
        (lambda it: it.update(kinds=[], groups=[]), "events.jsonl: is the log of no group of campaign.json"),
        (lambda it: it.pop("verdict"), "is not the state of a campaign: 'verdict'"),
        (lambda it: it.update(campaign="\ud800"), "is not the state of a campaign: 'utf-8' codec can't encode"),
    ],
)  # fmt: skip
def test_what_is_wrong_in_campaign_json_is_said(
    campaign: ACampaign, edit: Callable[[dict[str, Any]], object], why: str
) -> None:
    campaign.state(edit)
    assert why in refused(campaign.root)
    assert refused(campaign.root, campaign.store)


def test_the_log_of_a_group_is_not_made_good(campaign: ACampaign) -> None:
    """Not by its lines alone, not with its counts, and not with campaign.json and all reports of the group."""
    root, run = campaign.root, campaign.group(3)
    log = run / "events.jsonl"

    def sums(document: dict[str, Any]) -> None:
        of_third(document, sha256=sha256_of(log), outcomes={"gpu03": "fit", "": "fit"})

    change(log, (FAILED_LINE, '"outcome": "passed", "phase"'))
    campaign.state(fit)
    assert "its event `finish` states passed: 0, its results are 1" in refused(root)
    counts = (
        ('"passed": 0, "failed": 1', '"passed": 1, "failed": 0'),
        ('"fit": 0, "failed": 1', '"fit": 1, "failed": 0'),
    )
    change(log, *counts, ('"exit": 1', '"exit": 0'))
    assert "report.html: states something else than events.jsonl" in refused(root)
    write_reports(log)
    assert "events.jsonl: has another sha256 than campaign.json states" in refused(root)
    campaign.state(sums)
    assert refused(root, campaign.store) == (
        f"campaign.json: states something else than the history {campaign.store.path} (verdict)"
    )


def test_a_node_with_all_that_is_known_of_it_is_missing_to_the_history(campaign: ACampaign) -> None:
    shutil.rmtree(campaign.root / "000003")
    campaign.state(lambda it: it["nodes"].pop(), lambda it: it["groups"].pop(), fit)
    why = f"campaign.json: states something else than the history {campaign.store.path} (verdict)"
    assert refused(campaign.root, campaign.store) == why
    campaign.state(lambda it: it.update(campaign="june"))
    assert refused(campaign.root, campaign.store).endswith("h.db has no such campaign")


def test_a_campaign_that_tested_nothing_is_not_signed(campaign: ACampaign) -> None:
    for number in (1, 2, 3):
        shutil.rmtree(campaign.root / f"{number:06d}")
    edits: list[dict[str, Any]] = [{"kinds": [], "groups": []}, {"kinds": [], "groups": [], "nodes": []}]
    for edit in edits:
        campaign.state(fit, partial(updated, fields=edit))
        assert refused(campaign.root) == "campaign.json: it has no node or no suite, or two groups have the same log"


def test_a_log_that_is_missing_doubled_or_strange_is_named(campaign: ACampaign) -> None:
    root, third = campaign.root, campaign.group(3)
    shutil.copytree(third, third.with_name("20261129T020000-1"))
    assert refused(root) == "000003/20261129T020000-1/events.jsonl: is the log of no group of campaign.json"
    shutil.rmtree(third.with_name("20261129T020000-1"))
    shutil.copy(third / "events.jsonl", root)
    assert refused(root) == "events.jsonl: is the log of no group of campaign.json"
    (root / "events.jsonl").unlink()
    shutil.rmtree(third)
    assert refused(root) == (
        "000003/20261123T020000-1/events.jsonl: is missing, and campaign.json names it as the log of a group"
    )
    (root / "campaign.json").unlink()
    assert "is neither the folder of one run" in refused(root)


def test_a_failure_is_excused_only_by_a_later_group_that_passed(tmp_path: Path) -> None:
    results = [("gpu01", True), ("gpu02", False), ("gpu02", True)]
    made = run_campaign(tmp_path / "good", results, repaired=["gpu02"])
    with contextlib.closing(made.store):
        assert manifest_of(made.root, made.store)[1].verdict == "ACCEPTED, 2 of 2 nodes fit, judged by gpu"
    results = [("gpu01", True), ("gpu02", True), ("gpu02", False)]
    made = run_campaign(tmp_path / "bad", results)
    with contextlib.closing(made.store):
        for edit in (partial(of_third, left=["gpu02"]), partial(of_third, outcomes={})):
            made.state(fit, edit)
            assert refused(made.root) == "campaign.json: leaves out a failure after which no group has passed the node"


def test_a_group_that_was_killed_before_its_first_result_proves_nothing(tmp_path: Path) -> None:
    """It leaves a log that the campaign does not know."""
    made = run_campaign(tmp_path, [("gpu01", False), ("gpu02", True)])
    with contextlib.closing(made.store):
        log = made.group(1) / "events.jsonl"
        nothing = {"run": "", "sha256": "", "outcomes": {"gpu01": "not tested"}}
        made.state(
            lambda it: it["groups"][0].update(nothing),
            lambda it: it["nodes"][0].update(state="waiting", why=""),
            lambda it: it.update(verdict="NOT COMPLETE"),
        )
        assert "is the log of no group" in refused(made.root)  # it has a result
        (made.root / "000001" / "output.txt").write_text("")
        without(log, '"event": "result"', '"event": "finish"')
        assert assess(Files(made.root, sums_of(made.root))).verdict == "NOT COMPLETE, 1 of 2 nodes fit, judged by gpu"
