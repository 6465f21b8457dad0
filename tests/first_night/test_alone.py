"""Each suite alone at every site: none is accepted that has passed nothing, and none would drain a node."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from first_night_helpers import Boxes, alone
from first_night_sites import ALL, Site

if TYPE_CHECKING:
    from pathlib import Path

    from user_helpers import Checkout


BY_BOX: list[Site] = sorted(ALL.values(), key=lambda site: site.box)  # a sandbox serves all sites of its box


@pytest.mark.parametrize("site", BY_BOX, ids=str)
def test_each_suite_alone(site: Site, boxes: Boxes, folder: Path, checkout: Checkout) -> None:
    alone(site, boxes.of(site, checkout), folder, checkout)
