"""The sites of sites.STATES: drafted, checked, run healthy and with one sick node."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from first_night_helpers import Boxes, cases, play
from first_night_sites import STATES, Site

if TYPE_CHECKING:
    from pathlib import Path

    from user_helpers import Checkout


@pytest.mark.parametrize("site", cases(STATES))
def test_site(site: Site, boxes: Boxes, folder: Path, checkout: Checkout) -> None:
    play(site, boxes.of(site, checkout), folder, checkout)
