"""The fixtures of sandbox_fixtures.py."""

from sandbox_fixtures import _session_sandbox, own_signals, sandbox

__all__ = ["_session_sandbox", "own_signals", "sandbox"]
