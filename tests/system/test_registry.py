"""The container suite imports images of a registry."""

from __future__ import annotations

from registry_server import served

__all__ = ["served"]  # a fixture
