"""The HTML page of a history: bounded, whole without JavaScript, and nothing of another user becomes markup."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from report.test_html import HOSTILE, Page

from pytest_gpucluster.report.history.fleet_runs import Act, FleetRuns, LastVerdict, Worst
from pytest_gpucluster.report.history.regression import Past
from pytest_gpucluster.report.page import html_fleet

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

DAY = 86_400
FIRST = 1_763_600_000.0


def runs(count: int) -> tuple[Past, ...]:
    return tuple(Past(f"night{n:03}", "prod", False, FIRST + n * DAY, True, True) for n in range(count))


def a_fleet(states: dict[str, str], **fields: Any) -> FleetRuns:
    """Return a fleet whose states are letters: p(assed), f(ailed), e(rror), n(ot proved), t(ested not), - (absent)."""
    words = {"p": "passed", "f": "failed", "e": "error", "n": "not proved", "t": "not tested", "-": ""}
    rows = {node: [words[letter] for letter in row] for node, row in states.items()}
    known: dict[str, Any] = {"cluster": "prod", "simulated": False, "now": FIRST + 30.5 * DAY}
    return FleetRuns(**{**known, "runs": runs(len(next(iter(states.values())))), "states": rows, **fields})


def text_of(states: dict[str, str], **fields: Any) -> str:
    return Page(html_fleet.render(a_fleet(states, **fields))).text


def labels(page: str) -> list[str]:
    return re.findall(r'class="t name end">([^<]*)<', page)


def bars(page: str, css_class: str) -> list[tuple[int, ...]]:
    """Return (x, y, width) of the bars of a class in the first map."""
    picture = page[page.index('aria-label="states of') :]
    paths = re.findall(rf'<path class="{css_class}" d="([^"]*)"', picture[: picture.index("</svg>")])
    return [tuple(map(int, bar)) for path in paths for bar in re.findall(r"M(\d+) (\d+)h(\d+)", path)]


def test_a_row_per_node_the_worst_first_and_equal_neighbours_are_one_bar() -> None:
    page = html_fleet.render(a_fleet({"gpu01": "ppppp", "gpu02": "ppffp", "gpu03": "-penf", "": "pppft"}))
    assert labels(page) == ["(cluster)", "gpu02", "gpu03", "gpu01"]
    assert [width // 14 for *_, width in bars(page, "bad")] == [1, 2, 1]
    assert [width // 14 for *_, width in bars(page, "ok")] == [3, 2, 1, 1, 5]
    heights = {state: (top, height) for state, (_, top, height) in html_fleet.BARS.items()}
    assert len(set(heights.values())) == len(heights)  # no state by its colour alone
    for picture in re.findall(r"<svg .*?</svg>", page, re.DOTALL):
        ET.fromstring(picture)
    assert re.search(r"<title>gpu02: failed, 2025-11-2\d to 2025-11-2\d, 2 runs</title>", page)


def test_ages_are_whole_days_the_oldest_first() -> None:
    now = FIRST + 30.5 * DAY
    verdicts = {
        node: {"gpu": LastVerdict(now - days * DAY, "passed"), "os": LastVerdict(now - 60, "failed")}
        for node, days in (("gpu01", 2.9), ("gpu02", 2.1), ("gpu03", 40))
    }
    del verdicts["gpu03"]["os"]
    text = text_of({"gpu01": "p"}, verdicts=verdicts)
    ages = text[text.index("share a row. nodes gpu os") :]
    assert ages.startswith("share a row. nodes gpu os gpu03 40 d \N{EN DASH} 2 nodes: gpu[01-02] 2 d < 1 d")
    later = html_fleet.render(a_fleet({"gpu01": "p"}, verdicts=verdicts, now=now - 9 * DAY))
    assert "-" not in re.findall(r"(\S+) d</td>", later)  # a clock that went back


def test_rows_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(html_fleet, "MAX_ROWS", 3)
    monkeypatch.setattr(html_fleet, "PART", 2)
    page = html_fleet.render(a_fleet({f"gpu{n}": "p" for n in range(5)}))
    assert labels(page) == ["gpu0", "gpu1", "gpu2"]
    assert page.count('aria-label="states of') == 2
    assert "2 further nodes are in the history." in Page(page).text
    monkeypatch.setattr(html_fleet, "MAX_AGES", 1)
    verdicts = {f"gpu{n}": {"gpu": LastVerdict(FIRST + n * DAY, "passed")} for n in range(5)}
    assert "4 further nodes have younger verdicts." in text_of({"gpu0": "p"}, verdicts=verdicts)


def test_nothing_of_another_user_becomes_markup(tmp_path: Path) -> None:
    fleet = FleetRuns(
        cluster=HOSTILE,
        simulated=True,
        now=FIRST,
        more_runs=0,
        runs=(replace(runs(1)[0], run=HOSTILE, cluster=HOSTILE),),
        states={HOSTILE: ["failed"], "gpu01": ["odd"]},
        verdicts={HOSTILE: {HOSTILE: LastVerdict(FIRST, HOSTILE)}},
        worst=(Worst(HOSTILE, 1, 1, FIRST, ((HOSTILE, 1),)),),
        acts=(Act(FIRST, HOSTILE, HOSTILE, HOSTILE, HOSTILE, HOSTILE),),
    )
    html_fleet.write(fleet, tmp_path / "fleet.html")
    text = (tmp_path / "fleet.html").read_text(encoding="utf-8")
    page = Page(text)
    assert (page.of("script"), page.of("img")) == ([], [])
    assert not [name for _, attributes in page.elements for name in attributes if name.startswith("on")]
    assert not [char for char in text if not char.isprintable() and char not in "\n\t"]
    assert page.text.count("alert(1)") >= 10
