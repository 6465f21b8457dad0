"""Hostile nodes and hostile arguments: what is shown stays harmless, memory bounded, shells read nothing in it."""

from __future__ import annotations

import html
import json
import os
import shlex
import subprocess
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from fuzz_readers import campaign
from hypothesis import example, given
from hypothesis import strategies as st
from plugin_helpers import Run, run_pytest
from sandbox_helpers import DEADLINE

from pytest_gpucluster.cluster.channel.channel import Fleet
from pytest_gpucluster.cluster.slurm.allocation import Allocation, AllocationRequest
from pytest_gpucluster.cluster.slurm.client import Slurm
from pytest_gpucluster.cluster.slurm.step import StepRequest, environment_request, run_step
from pytest_gpucluster.cluster.transport import LocalTransport
from pytest_gpucluster.config.models import EnvironmentConfig
from pytest_gpucluster.core import redact
from pytest_gpucluster.core.probe import with_root

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_gpucluster.sandbox import Sandbox

CAMPAIGN = campaign(25)
SECRET = "s3cr3t-h7Kq"
HOSTILE = "\x1b[2J\x1b]0;owned\x07<b>&amp;]]>\x00\x08\u202e\ufffe'\"`$(touch owned)"

SUITE = f"""
import os
from pathlib import Path

import pytest

from pytest_gpucluster.core.check import Action, Finding, Metric, check
from pytest_gpucluster.core.errors import NotApplicable
from pytest_gpucluster.core.probe import Probe, text_of

HOSTILE = {HOSTILE!r}
SECRET = {SECRET!r}
@pytest.fixture
def shown(gpucluster_node):
    return gpucluster_node.facts(Probe("shown", r"printf '\\033[31m%s\\033[0m\\000 <x>]]> MY_TOKEN={SECRET} end' red", text_of))


@pytest.fixture
def flood(gpucluster_node):
    return gpucluster_node.facts(Probe("flood", "head -c 104857600 /dev/zero", text_of, timeout=120))


@pytest.fixture
def endless(gpucluster_node):
    return gpucluster_node.facts(Probe("endless", "yes {SECRET}", text_of, timeout=60))


@pytest.fixture
def garbled(gpucluster_node):
    return gpucluster_node.facts(Probe("garbled", "printf '\\377\\376'; exit 0", lambda answer: int(text_of(answer))))




@check("hostile.shown", cause=HOSTILE, hint=f"export DB_PASSWORD={{SECRET}}", action=Action.MONITOR)
def judge(text):
    yield Metric("m" + text, float("nan"), text, text)
    yield Finding(HOSTILE, text, f"https://me:{{SECRET}}@host/x")


def test_shown(shown, gpucluster_item):
    gpucluster_item.expect(judge(shown))


def test_flood(flood):
    raise RuntimeError("100 MiB were read")


def test_endless(endless):
    raise RuntimeError("no end was read")


def test_garbled(garbled):
    pass


def step(env):
    raise ValueError(HOSTILE)


def test_locals(gpucluster_node):
    step({{"WANDB_API_KEY": SECRET}})


def test_refused(host, gpucluster_node):
    gpucluster_node.facts(Probe("refused", r"printf '\\033[31m<b>' >&2; exit 5", text_of))


def test_none(gpucluster_node):
    raise NotApplicable(HOSTILE)


@pytest.mark.parametrize("value", [HOSTILE])
def test_parameter(gpucluster_node, value, record_property):
    record_property("mine", value)
    assert not value


def test_printed(gpucluster_node):
    print(HOSTILE, f"AWS_SECRET_ACCESS_KEY={{SECRET}}")
    assert not gpucluster_node.name, f"token: {{SECRET}}"


def test_memory(gpucluster_node):
    # not ru_maxrss: that begins with what the process had that started this one
    (peak,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:"))
    Path("peak").write_text(peak.split()[1])
"""


@pytest.fixture
def hostile(tmp_path: Path) -> Run:
    """One run against a node that prints all this."""
    return run_pytest(tmp_path, "--cluster=local", "-v", "-l", "--junitxml=junit.xml", files={"test_hostile.py": SUITE})


def shown(run: Run) -> dict[str, str]:
    """Return the texts that a person or a machine reads of a run."""
    files = [*(run.folder / "reports" / "latest").glob("*"), run.folder / "junit.xml"]
    return {"terminal": run.out + run.err} | {str(path): path.read_text() for path in files if path.is_file()}


def test_no_hostile_text_and_no_secret_reaches_terminal_or_reports(hostile: Run) -> None:
    found = {name.rpartition("::")[2].partition("[")[0]: kind for name, kind in hostile.outcomes.items()}
    assert found == {
        "test_shown": "failed",
        "test_flood": "not checked",
        "test_endless": "not checked",
        "test_garbled": "error",
        "test_locals": "error",
        "test_refused": "not checked",
        "test_none": "not applicable",
        "test_parameter": "failed",
        "test_printed": "failed",
        "test_memory": "passed",
    }
    source = {line.strip() for line in SUITE.splitlines() if SECRET in line}  # pytest shows it: the site's
    texts = shown(hostile)
    assert {"events.jsonl", "junit.xml", "report.html"} <= {Path(name).name for name in texts}
    for name, text in texts.items():
        strange = {char for char in text if not char.isprintable() and char not in "\n\t"}
        assert not strange, name
        leaks = [it for it in text.splitlines() if SECRET in it and not any(one in it for one in source)]
        assert not leaks, name
    for name in ("events.jsonl", "junit.xml"):
        assert redact.REDACTED in html.unescape((hostile.reports / name).read_text())
    ET.fromstring((hostile.reports / "junit.xml").read_text())
    for line in (hostile.reports / "events.jsonl").read_text().splitlines():  # strict JSON, one event a line
        json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert not (hostile.folder / "owned").exists()
    # 100 MiB and an endless output were printed; python and pytest have 80
    assert int((hostile.folder / "peak").read_text()) < 250 * 1024


# --- quoting

ODD = ("$(touch owned)", "`id`", "a'b", 'a"b', "\\", "\n", "-n", "--", "*", "~", "a;b|c&d", "{x}", "%s", "é\x1b")
ANY = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12)
WORDS = st.lists(ANY | st.sampled_from(ODD), min_size=1, max_size=4)


@pytest.fixture(scope="module")
def channel() -> Iterator[Fleet]:
    with Fleet.local("here") as fleet:
        yield fleet


@CAMPAIGN
@given(words=WORDS)
@example(words=["'", '"', "\\", "\n|"])
def test_words_reach_a_node_as_they_are(channel: Fleet, words: list[str]) -> None:
    command = f"printf '%s\\0' {shlex.join(words)}"
    for line in (command, with_root(command)):
        answer = channel.ask_node("here", line, timeout=DEADLINE, fresh=True)
        assert answer.stdout.split(b"\0")[:-1] == [word.encode() for word in words], answer


@pytest.mark.parametrize("kind", ["modules", "conda"])
def test_names_of_the_cluster_file_run_nothing(tmp_path: Path, kind: str) -> None:
    name = "x$(touch owned)`touch owned`\"; touch owned; '"
    chosen = {"modules": (name,)} if kind == "modules" else {"conda": name}
    environment = EnvironmentConfig.model_construct(**{**EnvironmentConfig().__dict__, **chosen})
    request = environment_request(environment, StepRequest(("true",)))
    bash = subprocess.run(
        ["bash", "-c", f"module() {{ :; }}; {request.prelude}"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=1200,
        check=False,
        env={**os.environ, "LOADEDMODULES": "", "CONDA_EXE": "false"},
    )
    assert bash.returncode == 1, bash.stderr
    assert name in bash.stderr
    assert not (tmp_path / "owned").exists()


def test_words_reach_a_task_as_they_are(sandbox: Sandbox) -> None:
    words = [*(word for word in ODD if "\n" not in word), "", "x,y=z"]
    env = {"HOSTILE": "a,b=c 'd' $(id)", "MY_TOKEN": SECRET}
    slurm = Slurm(LocalTransport(dict(sandbox.env)))
    with Allocation.request(slurm, AllocationRequest(nodes=("gpu01",), partition="batch")) as held:
        argv = ("sh", "-c", 'printf "%s|" "$@" "$HOSTILE" "$MY_TOKEN"', "sh", *words)
        result = run_step(slurm, held, StepRequest(argv, env=env))
    assert result.tasks[0].stdout == "".join(f"{word}|" for word in (*words, *env.values())) + "\n"
    assert SECRET not in result.command
    assert shlex.split(result.command)[2] == f"MY_TOKEN={redact.REDACTED}"


# --- secrets

LEAKS = {
    "name": f"WANDB_API_KEY={SECRET} srun",
    "quoted value": f'export DB_PASSWORD="{SECRET} {SECRET}"',
    "json": json.dumps({"secret": SECRET}),
    "option": f"curl --token {SECRET} x",
    "url": f"docker://me:{SECRET}@registry.example/image",
    "private key": f"-----BEGIN OPENSSH PRIVATE KEY-----\n{SECRET}\n-----END OPENSSH PRIVATE KEY-----",
    "private key that was cut": f"-----BEGIN RSA PRIVATE KEY-----\n{SECRET}\n",
    "by shape": "ghp_" + SECRET.replace("-", "") * 3,
}


PLANTED = """
import os
from pathlib import Path

from pytest_gpucluster.core.errors import StepError

FILE = os.environ["PLANTED"]
TEXT = Path(FILE).read_text()


def test_step(gpucluster_srun, gpucluster_node):
    print(TEXT)
    assert gpucluster_srun(["sh", "-c", "cat $0; cat $0 >&2", FILE]).ok
    gpucluster_srun(["sh", "-c", "exit 0", "--token", TEXT.split()[0].partition("=")[2]])


def test_failed(gpucluster_srun, gpucluster_node, record_property, gpucluster_item):
    record_property("said", TEXT)
    record_property("api_token", TEXT.split()[0].partition("=")[2])
    gpucluster_item.measure("speed", 1, "GB/s", device=TEXT.splitlines()[1])
    told = TEXT
    assert told == "", told


def test_broken(gpucluster_node):
    raise StepError(TEXT)


def test_skipped(gpucluster_node):
    import pytest
    pytest.skip(TEXT)
"""


def test_no_form_of_a_secret_and_no_control_is_left_anywhere(sandbox: Sandbox, tmp_path: Path) -> None:
    """All files that a run leaves, and what it shows: nine forms, each with a secret of its own."""
    forms = {**LEAKS, "hidden": f"\x1b[1mpass\x1b[0mwo\x00rd={SECRET}"}
    forms["private key that was cut"] = forms.pop("private key that was cut")  # which takes all that follows
    secrets = {kind: f"n0tSh0wn{number:02}" for number, kind in enumerate(forms)}
    plain = SECRET.replace("-", "")
    planted = [text.replace(SECRET, secrets[kind]).replace(plain, secrets[kind]) for kind, text in forms.items()]
    home = tmp_path / "elsewhere"
    home.mkdir()
    (home / "planted").write_text("\n".join([*planted, "x" * 300]))  # pytest shows the end of a long text
    run = run_pytest(
        tmp_path,
        f"--cluster={sandbox.cluster_file}",
        *("--nodes=gpu01", "--history=history.db", "-rA", "-l", "-o", "junit_logging=all"),
        files={"test_planted.py": PLANTED},
        env={"PLANTED": str(home / "planted")},
    )
    assert sorted(run.outcomes.values()) == ["error", "failed", "passed", "skipped"]
    files = [path for path in (tmp_path / "reports").rglob("*") if path.is_file()]
    assert len([path for path in files if path.suffix == ".log"]) == 2
    texts = {str(path): path.read_bytes().decode("utf-8", "replace") for path in files}
    texts["terminal"] = run.out + run.err
    for name, text in texts.items():
        assert {kind for kind, secret in secrets.items() if secret in text} == set(), name
        assert {char for char in text if not char.isprintable() and char not in "\n\t"} <= {"\r"}, name
    history = (tmp_path / "history.db").read_bytes()
    assert {kind for kind, secret in secrets.items() if secret.encode() in history} == set()
    log = next(text for name, text in texts.items() if "0001-planted.step" in name)
    assert log.count("WANDB_API_KEY=<redacted>") == 2
    places = [*files, tmp_path / "history.db"]
    assert {path.stat().st_mode & 0o777 for path in places} == {0o600}
    assert {(tmp_path / "reports" / name).stat().st_mode & 0o777 for name in ("", "latest", "latest/steps")} == {0o700}
