"""The SSH transport against a real sshd on loopback: answers as locally, and an end to everything it starts."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import paramiko
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from plugin_helpers import is_alive
from sandbox_helpers import wait_for
from ssh_helpers import HOST, WHY_NOT, Blackhole, Sshd, sshd

from pytest_gpucluster.cluster.channel.over_ssh import fleet_over_ssh
from pytest_gpucluster.cluster.transport import LocalTransport, kill_group, ssh
from pytest_gpucluster.cluster.transport.ssh import SshTransport, repeatable
from pytest_gpucluster.config.models import HostAddress, SshConfig, TransportConfig
from pytest_gpucluster.core.errors import ConfigError, TransportError
from pytest_gpucluster.core.finding import Explanation

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pytest_gpucluster.cluster.channel.channel import Fleet

pytestmark = [pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT), pytest.mark.thorough]
LONG = 60.0  # seconds; far above what a loaded machine needs


@pytest.fixture(scope="module")
def server() -> Iterator[Sshd]:
    folder = Path(tempfile.mkdtemp(prefix="ssh-"))
    with sshd(folder / "d") as running:
        yield running
    shutil.rmtree(folder)


def program(folder: Path, name: str, text: str) -> Path:
    tool = folder / name
    tool.write_text(f"#!/bin/sh\n{text}\n")
    tool.chmod(0o755)
    return tool


def break_once(there: Path, server: Sshd) -> None:

    def wait_and_break() -> None:
        wait_for(there.exists, "the command has arrived")
        server.hang_up()

    threading.Thread(target=wait_and_break, daemon=True).start()


def with_known_hosts(*servers: Sshd) -> str:
    """Return a known_hosts file of these servers, all of which let the first one's key in."""
    known = servers[0].folder / "known_hosts_of_all"
    known.write_text("".join(f"[{HOST}]:{one.port} {one.host_key}\n" for one in servers))
    for one in servers[1:]:
        shutil.copy(servers[0].folder / "id_ed25519.pub", one.folder / "authorized_keys")
    return str(known)


def answer(transport: SshTransport, *argv: str, **options: Any) -> str:
    try:
        return transport.run(argv, timeout=LONG, **options).stdout
    finally:
        transport.close()


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Sshd]:
    """A server that a test may break."""
    with sshd(tmp_path / "d") as running:
        yield running


@pytest.fixture(scope="module")
def far(server: Sshd) -> Iterator[SshTransport]:
    transport = SshTransport(server.settings(), {"GIVEN": "a b"})
    yield transport
    transport.close()


def read_pid(file: Path) -> int:
    wait_for(lambda: file.exists() and file.read_text().strip(), f"{file} is written")
    return int(file.read_text())


# --- answers


@pytest.mark.parametrize("end", ["exit 3", "kill -KILL $$", "exit 143"])
def test_answers_are_those_of_a_local_command(far: SshTransport, end: str) -> None:
    shown = f'cat; echo "$GIVEN $MORE"; printf %s "$1"; echo bad >&2; {end}'
    words = ["sh", "-c", shown, "sh", "'\n" * 60_000]
    more: dict[str, Any] = {"timeout": LONG, "input": "in\n", "env": {"MORE": "x,y"}}
    here, there = LocalTransport({"GIVEN": "a b"}).run(words, **more), far.run(words, **more)
    assert there.stdout.startswith("in\na b x,y\n")
    assert (here.rc, here.stdout, here.stderr) == (there.rc, there.stdout, there.stderr)


@pytest.mark.parametrize("command", ["yes", "yes >&2"])
def test_endless_output_is_ended(far: SshTransport, monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    monkeypatch.setattr("pytest_gpucluster.cluster.transport.remote_process.MAX_OUTPUT", 1 << 20)
    with pytest.raises(TransportError, match="sh: printed more than"):
        far.run(["sh", "-c", command], timeout=LONG)


HOSTILE = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=40)
NAMES = st.from_regex(r"GPUC_[A-Za-z0-9_]{1,10}", fullmatch=True)


ODD = ["gpu[01-02];reboot", "it's", '"$(id)`id`"', "a\nb\r\n", "\\n\\\\c\\0101", "-n", "", "!!", "%s"]


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@example(ODD, {})
@given(st.lists(HOSTILE, max_size=6), st.dictionaries(NAMES, HOSTILE, max_size=3))
def test_no_shell_reads_the_words(far: SshTransport, words: list[str], env: dict[str, str]) -> None:
    done = far.run(["sh", "-c", 'printf "%s\\0" "$@"; env -0', "sh", *words], timeout=LONG, env=env)
    came = done.stdout.split("\0")
    given = dict(one.split("=", 1) for one in came[max(1, len(words)) :] if one.startswith("GPUC_"))
    assert (came[: len(words)], given) == (words, env)


@pytest.mark.parametrize(
    ("argv", "env", "why"),
    [
        (["echo", "a\0b"], {}, "NUL byte"),
        (["true"], {"A.B": "1"}, r"'A\.B' is no name of a shell variable"),
        (["no-such"], {}, rf"^no-such: not found on {HOST}:\d+: set slurm\.bin to its folder"),
        (["/etc/passwd"], {}, "permission denied on"),
        (["/no/such"], {}, "not found on"),
    ],
)
def test_no_start_says_why(far: SshTransport, argv: list[str], env: dict[str, str], why: str) -> None:
    with pytest.raises(TransportError, match=why):
        far.run(argv, timeout=LONG, env=env)


def test_none_takes_a_variable_away_and_path_goes_first(server: Sshd, tmp_path: Path) -> None:
    program(tmp_path, "sinfo", "echo ours ${HOME-gone}")
    transport = SshTransport(server.settings(), path=str(tmp_path))
    assert answer(transport, "sinfo", env={"HOME": None}) == "ours gone\n"


def over_ssh(nodes: Mapping[str, Sshd], server: Sshd, **keys: str) -> Fleet:
    """Return a fleet of which servers stand for the nodes; the keys are those of `ssh:` for one server."""
    own = {name: value for name, value in server.keys(**keys).items() if name not in {"kind", "host"}}
    hosts = {node: HostAddress(host=HOST, port=one.port) for node, one in nodes.items()}
    return fleet_over_ssh(tuple(nodes), SshConfig.model_validate(own), hosts)


def test_nodes_are_reached_through_one_connection_to_a_jump_host(server: Sshd, own: Sshd) -> None:
    nodes = dict.fromkeys(("gpu03", "gpu01", "gpu02"), server)
    known = with_known_hosts(server, own)
    with over_ssh(nodes, server, known_hosts=known, jump=f"{HOST}:{own.port}") as fleet:
        answers = fleet.ask("echo $SLURMD_NODENAME; exit 3", timeout=LONG)
        assert len(own.sessions()) == 1
    wait_for(lambda: not own.sessions(), "the way through the jump host is closed")
    assert {node: (one.rc, one.out.strip()) for node, one in answers.items()} == {n: (3, n) for n in nodes}


def test_a_node_whose_connection_breaks_is_lost(own: Sshd, server: Sshd) -> None:
    known = with_known_hosts(server, own)
    with over_ssh({"gpu01": own, "gpu02": server}, server, known_hosts=known) as fleet:
        assert {one.rc for one in fleet.ask("true", timeout=LONG).values()} == {0}
        own.hang_up()
        wait_for(lambda: fleet.lost, "the node is lost")
        assert fleet.lost == {"gpu01": Explanation("", "its SSH connection was lost")}
        ends = {node: one.rc for node, one in fleet.ask("id", timeout=LONG).items()}
        assert ends == {"gpu01": None, "gpu02": 0}


@pytest.mark.parametrize("shell", ["csh", "tcsh", "fish", "zsh", "bash", "dash", "busybox"])
def test_every_login_shell_starts_the_same_command(shell: str, tmp_path: Path) -> None:
    found = shutil.which(shell)
    if found is None:
        pytest.skip(f"{shell} is not here")
    name = f"{found} sh" if shell == "busybox" else found
    noisy = f'ForceCommand echo Welcome; printf "no end"; exec {name} -c "$SSH_ORIGINAL_COMMAND"'
    with sshd(tmp_path / "d", options=(noisy,)) as server:
        words = ["printf", "%s|", "a\\nb", "!x", "it's"]
        assert answer(SshTransport(server.settings()), *words) == "a\\nb|!x|it's|"


def test_a_login_shell_that_ends_at_once_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def late(channel: Any, line: bytes) -> None:
        wait_for(lambda: channel.closed, "the shell has ended")
        plain(channel, line)

    plain = paramiko.Channel.sendall
    monkeypatch.setattr(paramiko.Channel, "sendall", late)
    closed = pytest.raises(TransportError, match="runs no commands: it printed 'This account is closed'")
    with sshd(tmp_path / "d", options=("ForceCommand echo This account is closed",)) as server, closed:
        SshTransport(server.settings()).run(["true"], timeout=LONG)


# --- ends


@pytest.mark.parametrize("sessions", [10, 1])
def test_the_whole_far_group_dies_at_the_deadline(tmp_path: Path, sessions: int) -> None:
    file = tmp_path / "pid"
    with sshd(tmp_path / "d", options=(f"MaxSessions {sessions}",)) as server:
        far = SshTransport(server.settings())
        with pytest.raises(TransportError, match=r"sh: not finished after 5 s on "):
            far.run(["sh", "-c", f"sleep 86400 & echo $! > {file}; wait"], timeout=5)
        wait_for(lambda: not is_alive(read_pid(file)), "the grandchild ends")
        far.close()


def test_streams_are_whole_and_a_group_is_signalled_by_its_number(far: SshTransport) -> None:
    data = bytes(range(256)) * 40_000
    process = far.spawn(["sh", "-c", "tee /dev/stderr; echo after; exit 4"])
    out, err = process.communicate(data, LONG)  # the end of input is all that ends
    assert (out == data + b"after\n", err == data, process.wait(LONG)) == (True, True, 4)
    process.close()
    process = far.spawn(["sh", "-c", "trap 'echo told; exit 5' TERM; echo ready; while :; do sleep 1; done"])
    assert process.stdout.readline() == b"ready\n"
    kill_group(process, signal.SIGTERM)
    assert (process.wait(LONG), process.stdout.read()) == (5, b"told\n")
    kill_group(process)


def test_a_broken_connection_ends_the_input_of_what_runs(own: Sshd, tmp_path: Path) -> None:
    transport = SshTransport(own.settings())
    process = transport.spawn(["sh", "-c", f"cat; echo over > {tmp_path}/end"])
    own.hang_up()
    assert process.wait(LONG) == 255
    assert b"error: the SSH connection to 127.0.0.1:%d was lost" % own.port in process.stderr.read()
    wait_for((tmp_path / "end").exists, "the far process saw the end of its input")
    transport.close()


def test_silence_ends_both_sides(own: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cable = Blackhole(own.port)
    known = own.folder / "known_hosts"
    known.write_text(f"[{HOST}]:{cable.port} {own.host_key}\n")
    monkeypatch.setattr(TransportConfig, "alive", 4)
    transport = SshTransport(own.settings(port=cable.port))
    process = transport.spawn(["sh", "-c", f"echo $$ > {tmp_path}/pid; cat; echo over > {tmp_path}/end"])
    wait_for(lambda: len(own.sessions()) == 1, "connected")
    time.sleep(5)  # longer than `alive`: a connection that only has nothing to say stands
    assert process.poll() is None
    cable.silence()
    wait_for((tmp_path / "end").exists, "the far side gave the connection up")
    assert process.wait(LONG) == 255
    cable.close()
    transport.close()


def test_a_command_that_only_reads_is_repeated_and_a_submission_never(own: Sshd, tmp_path: Path) -> None:
    read, sent = tmp_path / "read", tmp_path / "sent"
    program(tmp_path, "sinfo", f'echo x >> {read}\n[ "$(wc -l < {read})" -gt 1 ] && echo idle || sleep 300')
    program(tmp_path, "sbatch", f"echo x >> {sent}\nsleep 20")
    transport = SshTransport(own.settings(), path=str(tmp_path))
    break_once(read, own)
    assert transport.run(["sinfo"], timeout=LONG).stdout == "idle\n"
    break_once(sent, own)
    with pytest.raises(TransportError, match=r"it may have (completed|run): check before you repeat it"):
        transport.run(["sbatch"], timeout=LONG)
    assert answer(transport, "echo", "on") == "on\n"  # the connection is made anew
    assert (read.read_text(), sent.read_text()) == ("x\nx\n", "x\n")


def test_a_submission_that_may_have_begun_says_so(tmp_path: Path) -> None:
    there = tmp_path / "there"
    # it has the command, and is slow to say that it begins
    shell = program(tmp_path, "shell", f"read -r line\ntouch {there}\nsleep 20")
    with sshd(tmp_path / "d", options=(f"ForceCommand {shell}",)) as server:
        break_once(there, server)
        with pytest.raises(TransportError, match="check before you repeat it"):
            answer(SshTransport(server.settings()), "sbatch")


def test_a_server_that_restarts_is_waited_for(own: Sshd) -> None:
    transport = SshTransport(own.settings())
    transport.run(["true"], timeout=LONG)
    own.stop()
    restart = threading.Timer(1.0, own.start)
    restart.start()
    assert answer(transport, "echo", "again") == "again\n"
    restart.join()  # else the fixture may stop the server before it is known


def test_more_sessions_than_the_server_allows_go_over_another_connection(tmp_path: Path) -> None:
    with sshd(tmp_path / "d", options=("MaxSessions 2",)) as server:
        transport = SshTransport(server.settings())
        processes = [transport.spawn(["cat"]) for _ in range(5)]
        for number, process in enumerate(processes):
            assert process.communicate(b"%d" % number, LONG)[0] == b"%d" % number
            process.close()
        transport.close()


@pytest.mark.parametrize(
    ("argv", "can"),
    [
        ("sinfo -N", True),
        ("/opt/slurm/bin/squeue", True),
        ("scontrol -o show node", True),
        ("scancel 12", True),
        ("scontrol update NodeName=a", False),
        ("sbatch show", False),
        ("sh -c show", False),
    ],
)
def test_what_may_be_repeated(argv: str, can: bool) -> None:
    assert repeatable(argv.split()) is can


# --- who is let in


def test_an_unknown_host_key_names_file_and_step(own: Sshd) -> None:
    known = own.folder / "known_hosts"
    known.write_text("")
    with pytest.raises(TransportError, match=f"its host key is not in {known}: ") as caught:
        answer(SshTransport(own.settings()), "true")
    shown = subprocess.check_output(["ssh-keygen", "-lf", own.folder / "host_key.pub"], text=True).split()[1]
    assert f"fingerprint ssh-ed25519 {shown} " in str(caught.value)
    assert known.read_text() == ""
    subprocess.run(str(caught.value).partition("then: ")[2], shell=True, check=True, capture_output=True)
    assert answer(SshTransport(own.settings()), "echo", "let in") == "let in\n"


@pytest.mark.parametrize("line", ["{at} {other}", "{at} {key}\n@revoked * {key}"], ids=["another", "revoked"])
def test_a_host_key_that_is_not_the_known_one_is_refused(own: Sshd, line: str) -> None:
    known = own.folder / "known_hosts"
    other = " ".join((own.folder / "stranger.pub").read_text().split()[:2])
    known.write_text(line.format(at=f"[{HOST}]:{own.port}", key=own.host_key, other=other) + "\n")
    before = known.read_text()
    why = r"its host key is not the one in .*ssh-keygen -R '\[127.0.0.1\]:\d+' -f"
    with pytest.raises(TransportError, match=why):
        answer(SshTransport(own.settings()), "true")
    assert known.read_text() == before


def test_a_key_of_the_agent_opens(own: Sshd, monkeypatch: pytest.MonkeyPatch) -> None:
    if shutil.which("ssh-agent") is None:
        pytest.skip("no ssh-agent here")

    def call(*words: object) -> int:
        return subprocess.run([str(word) for word in words], capture_output=True, check=False).returncode

    sock, locked = own.folder / "agent", own.folder / "locked"
    agent = subprocess.Popen(["ssh-agent", "-D", "-a", sock], stdout=subprocess.DEVNULL)
    try:
        monkeypatch.setenv("SSH_AUTH_SOCK", str(sock))
        wait_for(lambda: call("ssh-add", "-l") != 2, "it listens")  # 2: there is no agent
        shutil.copy(own.folder / "id_ed25519", locked)
        locked.chmod(0o600)
        assert call("ssh-add", "-q", locked) == 0
        assert call("ssh-keygen", "-q", "-p", "-N", "passphrase", "-f", locked) == 0
        settings = own.settings(key_file=str(locked))
        assert answer(SshTransport(settings), "echo", "let in") == "let in\n"
        assert call("ssh-add", "-q", "-D") == 0
        with pytest.raises(TransportError, match="ssh-add"):
            answer(SshTransport(settings), "true")
    finally:
        agent.terminate()
        agent.wait()


def test_a_jump_host_leads_there_and_is_checked_too(own: Sshd, server: Sshd) -> None:
    known = with_known_hosts(server, own)
    keys = {"jump": f"{HOST}:{server.port}", "known_hosts": known}
    keys["key_file"] = str(server.folder / "id_ed25519")
    before = set(server.sessions())  # of tests before this one: they may be on their way out
    transport = SshTransport(own.settings(**keys))
    transport.run(["true"], timeout=LONG)
    assert len(own.sessions()) == 1
    assert len(set(server.sessions()) - before) == 1
    transport.close()
    Path(known).write_text(f"[{HOST}]:{own.port} {own.host_key}\n")
    with pytest.raises(TransportError, match=rf"ssh to {HOST}:{server.port}: its host key is not in"):
        answer(SshTransport(own.settings(**keys)), "true")


def test_the_ssh_configuration_is_read(own: Sshd) -> None:
    (own.folder / "ssh_config").write_text(
        f"Host login\n HostName {HOST}\n Port {own.port}\n IdentityFile {own.folder}/id_ed25519\n"
        f" UserKnownHostsFile {own.folder}/known_hosts\n"
    )
    keys = {"host": "login", "port": None, "key_file": None, "known_hosts": None}
    assert answer(SshTransport(own.settings(**keys)), "echo", "here") == "here\n"


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        ({"host": None}, "host is missing"),
        ({"key_file": "/no/key"}, "key_file /no/key is no file"),
        ({"config_file": "/no/config"}, "config_file /no/config: no such file"),
        ({"host": "a@b", "user": "c"}, "user"),
        ({"key_file": "STRANGER"}, "failed with .*/stranger, no key in the agent"),
        ({"host": "no-such-host.invalid"}, "no such host name: check it with getent hosts"),
        ({"port": 1}, rf"^ssh to {HOST}:1: no SSH server answers .*is sshd running"),
        ({"port": "MUTE"}, rf"^ssh to {HOST}:\d+: "),
    ],
)
def test_settings_that_do_not_lead_there_are_one_line(
    server: Sshd, keys: dict[str, Any], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ssh, "FIRST_PATIENCE", 0.0)
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    with socket.create_server((HOST, 0)) as mute:
        known = {"STRANGER": str(server.folder / "stranger"), "MUTE": mute.getsockname()[1]}
        found = {name: known.get(value, value) for name, value in keys.items()}
        with pytest.raises((ConfigError, TransportError), match=why) as caught:
            answer(SshTransport(server.settings(**found)), "true")
    assert "\n" not in str(caught.value)
