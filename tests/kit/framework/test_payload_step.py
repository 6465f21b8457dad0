"""The command line of a payload: what travels in it, and what the payload finds."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpucluster.core import redact
from pytest_gpucluster.kit.framework import payload_step
from pytest_gpucluster.kit.framework.payload_step import COLLECTIVE, command
from pytest_gpucluster.suites.burnin import payload as burnin
from pytest_gpucluster.suites.nccl_examples import payload_compile
from pytest_gpucluster.suites.ray import payload_node

if TYPE_CHECKING:
    from collections.abc import Sequence

MAX_ARG_STRLEN = 128 << 10  # bytes of one argument, Linux
WORDS = ("sweep", "-c", "two words", "'\"$(x)")
PAYLOAD = """# comment
import json, subprocess, sys
from pytest_gpucluster.kit.payloads.prelude import again, text_of
print(json.dumps([__name__, sys.argv[1:], len(text_of("suites/nccl_examples/example.cu"))]), flush=True)
if sys.argv[1] != "child":
    subprocess.check_call(again("child", "of the first"))
"""


@pytest.fixture
def payload(tmp_path: Path) -> Path:
    path = tmp_path / "payload.py"
    path.write_text(PAYLOAD)
    return path


def lines_of(argv: Sequence[str], **options: Any) -> list[list[Any]]:
    done = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=60, **options)
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("piece", [payload_step.PIECE, 1000])
def test_a_payload_and_its_child_find_their_words(
    payload: Path, piece: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(payload_step, "PIECE", piece)
    argv = command(sys.executable, payload, *WORDS)
    assert len(argv) - argv.index("PAYLOAD") > (2 if piece == 1000 else 1)
    size = len(Path(payload_compile.__file__).with_name("example.cu").read_text())
    # with nothing of this package, in a folder that it cannot write to, in the locale of a bare step
    found = lines_of(argv, cwd="/proc", env={"PATH": "/usr/bin:/bin", "LC_ALL": "C", "TMPDIR": str(tmp_path)})
    assert found == [["__main__", [*WORDS], size], ["__main__", ["child", "of the first"], size]]
    assert [path.name for path in tmp_path.iterdir()] == ["payload.py"]
    for words in (("--port", "1234"), ("abcd",)):  # base64 too: the payload would run without them
        assert subprocess.run((*argv, *words), check=False, capture_output=True, timeout=60).returncode == 1


@pytest.mark.parametrize("module", [burnin, payload_node, payload_compile], ids=lambda it: it.__name__)
def test_every_word_is_below_the_limit_of_linux(module: Any) -> None:
    words = command("python3", Path(module.__file__), "word")
    assert max(map(len, words)) <= payload_step.PIECE < MAX_ARG_STRLEN
    assert sum(map(len, words)) < MAX_ARG_STRLEN  # a whole command over SSH


def test_the_printed_command_can_be_repeated() -> None:
    """Base64 has the letters of secrets by chance: what is printed must still be the payload."""
    for path in (COLLECTIVE, Path(burnin.__file__), Path(payload_node.__file__)):
        words = [*command("python3", path, "work", "--deadline", "60")]
        assert redact.words(words) == words
        assert redact.text(" ".join(words)) == " ".join(words)
