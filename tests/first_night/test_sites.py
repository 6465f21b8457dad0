"""The sites of first_night_sites.py: drafted, checked, run healthy and with one sick node."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from first_night_helpers import Boxes, cases, play
from first_night_sites import ALL, Site

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("site", cases([*ALL.values()]))
def test_site(site: Site, boxes: Boxes, folder: Path) -> None:
    play(site, boxes.of(site), folder)
