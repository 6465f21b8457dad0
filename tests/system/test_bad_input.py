"""Hostile nodes and hostile arguments: what is shown stays harmless, memory bounded, shells read nothing in it."""

from __future__ import annotations

import json
import os
import re
import resource
import shlex
import subprocess
import xml.etree.ElementTree as ET
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from plugin_helpers import Run, run_pytest
from sandbox_helpers import DEADLINE

from pytest_gpucluster.cli.main import main
from pytest_gpucluster.cluster.channel.channel import Fleet
from pytest_gpucluster.cluster.channel.protocol import BASE64, FrameError, Stream, parse
from pytest_gpucluster.cluster.slurm.allocation import Allocation, AllocationRequest
from pytest_gpucluster.cluster.slurm.client import Slurm
from pytest_gpucluster.cluster.slurm.inventory import parse_nodes
from pytest_gpucluster.cluster.slurm.step import (
    LEAST_CAP,
    STEP_CAP,
    StepRequest,
    environment_request,
    fair_cap,
    run_step,
)
from pytest_gpucluster.cluster.transport import LocalTransport, local
from pytest_gpucluster.config.models import EnvironmentConfig
from pytest_gpucluster.core import redact
from pytest_gpucluster.core import sanitize as printable
from pytest_gpucluster.core.errors import ConfigError, SlurmError, TransportError
from pytest_gpucluster.core.probe import with_root
from pytest_gpucluster.report.events import EventLog, read_events, read_log
from pytest_gpucluster.suites.burnin import options as burnin

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pytest_gpucluster.sandbox import Sandbox

MIB = 1 << 20
EXAMPLES = int(os.environ.get("GPUCLUSTER_FUZZ_EXAMPLES", "25"))
CAMPAIGN = settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    derandomize="GPUCLUSTER_FUZZ_EXAMPLES" not in os.environ,
)
SECRET = "s3cr3t-h7Kq"
HOSTILE = "\x1b[2J\x1b]0;owned\x07<b>&amp;]]>\x00\x08\u202e\ufffe'\"`$(touch owned)"

SUITE = f"""
import os
from pathlib import Path

import pytest

from pytest_gpucluster.core.check import Action, Finding, check
from pytest_gpucluster.core.errors import StepError
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
    yield Finding(HOSTILE, text, f"https://me:{{SECRET}}@host/x")


def test_shown(shown, gpucluster_item):
    gpucluster_item.expect(judge(shown))


def test_flood(flood):
    raise RuntimeError("100 MiB were read")


def test_endless(endless):
    raise RuntimeError("no end was read")


def test_garbled(garbled):
    pass


def run(env, command):
    raise StepError(f"srun --password {{SECRET}}: {{command}}")


def step(env):
    raise ValueError(HOSTILE)


def test_step(gpucluster_node):
    run({{"WANDB_API_KEY": SECRET}}, f"env HF_TOKEN={{SECRET}} srun")


def test_locals(gpucluster_node):
    step({{"WANDB_API_KEY": SECRET}})


def test_printed(gpucluster_node):
    print(HOSTILE, f"AWS_SECRET_ACCESS_KEY={{SECRET}}")
    assert not gpucluster_node.name, f"token: {{SECRET}}"


def test_memory(gpucluster_node):
    # not ru_maxrss: that begins with what the process had that started this one
    (peak,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:"))
    Path("peak").write_text(peak.split()[1])
"""


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """One run against a node that prints all this."""
    folder = tmp_path_factory.mktemp("hostile")
    return run_pytest(
        folder,
        "--cluster=local",
        "-v",
        "-l",
        "--junitxml=junit.xml",
        files={"test_hostile.py": SUITE},
    )


def reports(run: Run) -> dict[str, str]:
    files = {
        name: (run.folder / "reports" / "latest" / name).read_text() for name in ("events.jsonl", "junit.xml")
    }
    files["pytest's junit.xml"] = (run.folder / "junit.xml").read_text()
    return {"terminal": run.out + run.err, **files}


def test_every_hostile_item_has_its_outcome(hostile: Run) -> None:
    found = {name.rpartition("::")[2].partition("[")[0]: kind for name, kind in hostile.outcomes.items()}
    assert found == {
        "test_shown": "failed",
        "test_flood": "not checked",
        "test_endless": "not checked",
        "test_garbled": "error",
        "test_step": "error",
        "test_locals": "failed",
        "test_printed": "failed",
        "test_memory": "passed",
    }


def test_no_control_character_reaches_terminal_or_reports(hostile: Run) -> None:
    for name, text in reports(hostile).items():
        found = {char for char in text if not char.isprintable() and char not in "\n\t"}
        assert not found, (name, found)
    ET.fromstring(reports(hostile)["junit.xml"])
    assert all(json.loads(line) for line in reports(hostile)["events.jsonl"].splitlines())
    assert not (hostile.folder / "owned").exists()


def test_no_secret_reaches_terminal_or_reports(hostile: Run) -> None:
    source = {
        line.strip() for line in SUITE.splitlines() if SECRET in line
    }  # pytest shows source: that is the site's
    for name, text in reports(hostile).items():
        lines = [
            line for line in text.splitlines() if SECRET in line and not any(one in line for one in source)
        ]
        assert not lines, (name, lines)
        assert redact.REDACTED in text or "&lt;redacted&gt;" in text, name


def test_a_flood_does_not_fill_the_memory(hostile: Run) -> None:
    peak = int((hostile.folder / "peak").read_text()) / 1024
    assert peak < 250, (
        f"{peak:.0f} MiB"
    )  # 100 MiB and an endless output were printed; python and pytest have 80


# --- control commands


@pytest.mark.parametrize("endless", ["yes", "yes >&2", "cat /dev/zero"])
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


@pytest.mark.parametrize(
    "name", ["--help", "..", "a b", "a/b", "\x1b[31mgpu", "g" * 300, "é", "$(id)", "a;b", "'"]
)
def test_a_hostile_node_name_is_refused_at_the_door(name: str) -> None:
    with pytest.raises(ValueError, match=r"no name of a node|no node in"):
        parse_nodes(f"NodeName={name} State=IDLE\n".replace("a b", "a%b"))


def test_a_slurm_that_prints_rubbish_is_one_harmless_line(tmp_path: Path) -> None:
    tool = tmp_path / "scontrol"
    tool.write_text("#!/bin/sh\nprintf 'NodeName=\\033[31mgpu01 State=IDLE\\n'\n")
    tool.chmod(0o755)
    slurm = Slurm(LocalTransport({"PATH": f"{tmp_path}:{os.environ['PATH']}"}))
    with pytest.raises(SlurmError, match="not understood") as caught:
        slurm.nodes()
    assert printable.clean(str(caught.value)) == str(caught.value)


def test_the_command_line_tool_prints_no_escape(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profiles", "show", "\x1b[31mDB_PASSWORD=x9x9"]) == 4
    printed = capsys.readouterr().err
    assert "\x1b" not in printed
    assert "x9x9" not in printed


# --- the channel


def test_an_agent_that_sends_without_end_is_cut() -> None:
    stream = Stream()
    for number in range(2000):
        frame = parse(b"n 1 o %d 1024 " % number + b"A" * 1024, b"n")
        assert frame is not None
        stream.add(frame, 1000)
    assert "more than the limit of 1000 bytes" in stream.damage
    assert sum(map(len, stream.pieces)) < 100_000
    end = parse(b"n 1 O 2000 0", b"n")
    assert end is not None
    stream.end(end)
    assert stream.damage
    assert stream.data(BASE64, 1000) == b""


@pytest.mark.parametrize("line", [b"n %s P" % (b"9" * 5000), b"n 1 X %s" % (b"9" * 5000)])
def test_a_number_without_end_is_a_damaged_frame(line: bytes) -> None:
    with pytest.raises(FrameError):
        frame = parse(line, b"n")
        assert frame is not None
        frame.integer(0)


def test_a_step_of_many_tasks_keeps_a_bounded_part_of_each() -> None:
    assert fair_cap(StepRequest(("true",), ntasks=8)) == 4 * MIB
    many = StepRequest(("true",), ntasks=1024)
    assert fair_cap(many) >= LEAST_CAP
    assert 2 * 1024 * fair_cap(many) <= STEP_CAP


# --- quoting

WORDS = st.lists(
    st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12)
    | st.sampled_from(["$(touch owned)", "`id`", "a'b", 'a"b', "\\", "\n", "-n", "--", "*", "~", "a;b|c&d", "{x}", "%s", "é\x1b"]),
    min_size=1,
    max_size=4,
)  # fmt: skip


@CAMPAIGN
@given(WORDS)
def test_words_reach_a_program_as_they_are(words: list[str]) -> None:
    done = LocalTransport().run(["printf", "%s\\0", *words], timeout=DEADLINE)
    assert done.stdout.split("\0")[:-1] == words


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
        cwd=tmp_path, capture_output=True, text=True, timeout=1200, check=False,
        env={**os.environ, "LOADEDMODULES": "", "CONDA_EXE": "false"},
    )  # fmt: skip
    assert bash.returncode == 1, bash.stderr
    assert name in bash.stderr
    assert not (tmp_path / "owned").exists()


def test_words_reach_a_task_as_they_are(sandbox: Sandbox) -> None:
    words = ["$(touch owned)", "a'b", 'a"b', "\\", "", "-n", "* ~", "a;b|c&d {x} %s", "é\x1b", "x,y=z"]
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
    "quoted word": f"env 'HF_TOKEN={SECRET} {SECRET}' srun",
    "quoted value": f'export DB_PASSWORD="{SECRET} {SECRET}"',
    "yaml": f"password: {SECRET}",
    "json": json.dumps({"secret": SECRET}),
    "option": f"curl --token {SECRET} x",
    "option with =": f"curl --api-key={SECRET}",
    "url": f"docker://me:{SECRET}@registry.example/image",
    "header": f"Authorization: Basic {SECRET}",
    "bearer": f"sent Bearer {SECRET}",
    "private key": f"-----BEGIN OPENSSH PRIVATE KEY-----\n{SECRET}\n-----END OPENSSH PRIVATE KEY-----",
    "private key that was cut": f"-----BEGIN RSA PRIVATE KEY-----\n{SECRET}\n",
    "by shape": "ghp_" + SECRET.replace("-", "") * 3,
}
HARMLESS = (
    "TOKENIZERS_PARALLELISM=false",
    "AuthType=auth/munge AuthInfo=(null)",
    "NCCL_DEBUG=INFO MASTER_ADDR=gpu01",
    "GPU 3 (GPU-5ec84d8d-1111-2222-3333-444444444444, 0000:1b:00.0)",
    "pkey: 0x8001, monkey=3, keyboard: us",
    "/images/pytorch.sqsh:/x sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    "http://gpu01:8080/metrics",
)


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
    """All files that a run leaves, and what it shows: 14 forms, each with a secret of its own."""
    forms = {**LEAKS, "hidden": f"\x1b[1mpass\x1b[0mwo\x00rd={SECRET}"}
    forms["private key that was cut"] = forms.pop("private key that was cut")  # which takes all that follows
    secrets = {kind: f"n0tSh0wn{number:02}" for number, kind in enumerate(forms)}
    plain = SECRET.replace("-", "")
    planted = [
        text.replace(SECRET, secrets[kind]).replace(plain, secrets[kind]) for kind, text in forms.items()
    ]
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
    assert {
        (tmp_path / "reports" / name).stat().st_mode & 0o777 for name in ("", "latest", "latest/steps")
    } == {0o700}


@pytest.mark.parametrize("kind", LEAKS)
def test_a_secret_is_taken_out(kind: str) -> None:
    assert SECRET not in redact.text(LEAKS[kind])
    assert SECRET.replace("-", "") not in redact.text(LEAKS[kind])
    assert redact.REDACTED in redact.text(LEAKS[kind])


@pytest.mark.parametrize("text", HARMLESS)
def test_what_is_no_secret_stays(text: str) -> None:
    assert redact.text(text) == text


def test_secrets_in_argv_and_in_data_are_taken_out() -> None:
    assert redact.words(["curl", "--password", SECRET, "-v"]) == ["curl", "--password", redact.REDACTED, "-v"]
    plain = redact.everything({"password": SECRET, "said": [f"A_TOKEN={SECRET}"], "nodes": ["gpu01"]})
    assert plain == {"password": redact.REDACTED, "said": [f"A_TOKEN={redact.REDACTED}"], "nodes": ["gpu01"]}


def test_commands_in_error_messages_have_no_secrets() -> None:
    for argv in (
        ["sh", "-c", "exit 3", f"--comment=MY_TOKEN={SECRET}"],
        ["sleep", "60", f"A_TOKEN={SECRET}"],
    ):
        with pytest.raises(SlurmError) as caught:
            Slurm(LocalTransport()).run(*argv, timeout=0.5)
        assert SECRET not in str(caught.value)


@CAMPAIGN
@given(st.text() | st.sampled_from(list(LEAKS.values())))
def test_redaction_is_final_and_clean_text_is_xml(text: str) -> None:
    once = redact.text(text)
    assert redact.text(once) == once
    cleaned = printable.clean(text)
    assert not re.search("[\\x00-\\x08\\x0b\\x0c\\x0e-\\x1f\\ud800-\\udfff\\ufffe\\uffff]", cleaned)
    assert len(cleaned) == len(text)


# --- the event log


def test_a_damaged_event_log_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    log = EventLog(path, "run")
    log.write("result", message=HOSTILE + "\ud800", number=float("nan"), MY_TOKEN=SECRET)
    log.close()
    with path.open("ab") as file:
        file.write(b"[" * 100_000 + b"\n\xff\xfe\n12\n" + b"9" * 5000 + b"\n" + b'{"event": "cut')
    events = list(read_events(path))
    assert [event["event"] for event in events] == ["result"]
    assert SECRET not in path.read_text(errors="replace")


def test_a_log_of_anything_is_no_traceback_for_the_burnin(tmp_path: Path) -> None:
    for wrong in (
        '{"event": "burnin"}',
        '{"event": "burnin", "what": 3}',
        '{"event": 5}',
        '{"event": "burnin", "what": "round"}',
    ):
        path = tmp_path / "events.jsonl"
        path.write_text(wrong + "\n")
        with pytest.raises(ConfigError, match=r"^--burnin-resume: .*events\.jsonl: .*event log") as caught:
            burnin.prepare(
                SimpleNamespace(burnin_resume=str(path), numprocesses=None, burnin_time=None), read_log
            )
        assert "\n" not in str(caught.value)


TOKENS = ("hf_" + "x7" * 10, "ghp_" + "x7" * 10, "AKIA" + "X7" * 8, "eyJ" + "x7" * 8 + "." + "x7" * 8)
LOGIN = r"""
def test_login(host):
    found = host.run("printf 'login ok\\n%s\\t%s\\n%s\\n%s\\n' h''f_{0} g''hp_{0} A''KIA{1} ey''J{2}").stdout
    assert found == "login ok"
"""


def test_no_report_holds_a_token_behind_an_escape(tmp_path: Path) -> None:
    text = LOGIN.replace("{0}", "x7" * 10).replace("{1}", "X7" * 8).replace("{2}", "x7" * 8 + "." + "x7" * 8)
    files = {"test_login.py": text, "c.yaml": "nodes: localhost\nslurm: {scheduler: none}\n"}
    done = run_pytest(tmp_path, "--cluster=c.yaml", "-vv", "--junitxml=own.xml", files=files)
    assert done.rc == 1, done.out + done.err
    written = {path.name: path.read_text(errors="replace") for path in tmp_path.rglob("*") if path.is_file()}
    assert {"events.jsonl", "junit.xml", "report.html", "own.xml"} <= written.keys()
    shown = {**written, "terminal": done.out + done.err}
    assert "login ok" in shown["terminal"]
    assert [(name, token) for name, text in shown.items() for token in TOKENS if token in text] == []
