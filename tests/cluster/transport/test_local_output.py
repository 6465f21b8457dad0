"""Output and input of control commands: what is printed without end is an error, and neither blocks the other."""

from __future__ import annotations

import resource

import pytest

from pytest_gpucluster.cluster.transport import LocalTransport, local
from pytest_gpucluster.core.errors import TransportError

MIB = 1 << 20


@pytest.mark.parametrize("endless", ["cat /dev/zero", "yes >&2"])
def test_endless_output_of_a_control_command_is_an_error(
    endless: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "MAX_OUTPUT", 4 * MIB)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(TransportError, match="printed more than 4 MiB"):
        LocalTransport().run(["sh", "-c", endless], timeout=1200)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 * 1024


def test_much_input_and_much_output_go_together() -> None:
    text = "0123456789abcdef" * (MIB // 8)
    assert LocalTransport().run(["cat"], timeout=1200, input=text).stdout == text
    assert LocalTransport().run(["true"], timeout=1200, input=text).rc == 0, "nobody read it"
