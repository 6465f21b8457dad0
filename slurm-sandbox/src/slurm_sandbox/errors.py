"""What can go wrong; each message is one line that states what to do."""

from __future__ import annotations


class SandboxError(Exception):
    """The sandbox could not be started, changed or stopped."""


class CommandError(SandboxError):
    """A command was not found, or did not end in time."""
