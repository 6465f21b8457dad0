"""A run that changed something sends one message, by a command and to a URL; what prevents it is one line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from paths import ROOT
from plugin_helpers import Run, run_pytest

if TYPE_CHECKING:
    from pathlib import Path

TEST = "def test_fit(host):\n    assert host.run('test -e {}').rc == 0, 'no licence file'\n"
SITE = """\
name: site
slurm: {{scheduler: none}}
nodes: localhost
profile: generic
notify: {}
"""


def run_with(folder: Path, notify: dict[str, Any]) -> Run:
    (folder / "site.yaml").write_text(SITE.format(json.dumps(notify)))
    return run_pytest(folder, "--cluster=site.yaml", files={"test_own.py": TEST.format(folder / "licence")})


@pytest.mark.thorough
def test_each_change_is_one_message(tmp_path: Path) -> None:
    kept = tmp_path / "kept.jsonl"
    code = f"import sys; open({str(kept)!r}, 'a').write(sys.stdin.read() + '\\n')"
    notify = {"command": [sys.executable, "-c", code]}
    (tmp_path / "licence").touch()
    assert run_with(tmp_path, notify).rc == 0
    assert run_with(tmp_path, notify).rc == 0  # as before: no message
    (tmp_path / "licence").unlink()
    assert run_with(tmp_path, notify).rc == 1
    (tmp_path / "licence").touch()
    assert run_with(tmp_path, notify).rc == 0
    sent = [json.loads(line) for line in kept.read_text().splitlines()]
    assert [message["verdict"] for message in sent] == ["accepted", "not accepted", "accepted"]
    assert "no licence file" in sent[1]["new"][0]
    assert sent[2]["healed"]
    assert sent[1]["text"].startswith("site: Not accepted: 0 of 1 node")


@pytest.mark.parametrize(
    ("notify", "line"),
    [
        ({"command": ["/nonexistent/to-slack"]}, "WARNING: notify: /nonexistent/to-slack: not found"),
        (
            {"command": ["sh", "-c", "echo no >&2; exit 3"]},
            "WARNING: notify: sh ended with exit status 3: no",
        ),
    ],
)
def test_what_prevents_it_is_one_line_and_no_failure(
    tmp_path: Path, notify: dict[str, Any], line: str
) -> None:
    (tmp_path / "licence").touch()
    run = run_with(tmp_path, notify)
    assert run.rc == 0
    assert line in run.out


@pytest.mark.parametrize(
    ("script", "program", "kept"),
    [
        (
            "notify-slack.sh",
            "curl",
            ['url = "https://hooks.example/T/secret"', '"prod: Accepted\\nall \\u00fc"}'],
        ),
        ("notify-mail.sh", "sendmail", ["To: ops@example.org", "Subject: prod: Accepted", "all ü"]),
    ],
)
def test_the_examples_send_the_text(tmp_path: Path, script: str, program: str, kept: list[str]) -> None:
    stub = tmp_path / program
    stub.write_text(f'#!/bin/sh\ncat > {tmp_path}/got; printf "%s\\n" "$@" >> {tmp_path}/got\n')
    stub.chmod(0o755)
    (tmp_path / "webhook").write_text("https://hooks.example/T/secret\n")
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SENDMAIL": str(stub)}
    env["SLACK_WEBHOOK_FILE"] = str(tmp_path / "webhook")
    text, argv = (
        json.dumps({"text": "prod: Accepted\nall ü"}),
        [str(ROOT / "examples" / script), "ops@example.org"],
    )
    subprocess.run(argv, input=text, text=True, env=env, check=True)
    got = (tmp_path / "got").read_text()
    assert [line for line in kept if line not in got] == []
    assert "secret" not in got.partition("--config")[2]  # of the command line
