"""The sandboxes of the sites, one at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from first_night_helpers import Boxes, home
from user_helpers import readable_checkout

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from user_helpers import Checkout


@pytest.fixture(scope="module")
def boxes() -> Iterator[Boxes]:
    """The sandboxes of this module's sites."""
    made = Boxes()
    yield made
    made.close()


@pytest.fixture(scope="session")
def checkout() -> Iterator[Checkout]:
    """The checkout, where any user may read it."""
    with readable_checkout() as found:
        yield found


@pytest.fixture
def folder() -> Iterator[Path]:
    """The operator's HOME."""
    with home() as made:
        yield made
