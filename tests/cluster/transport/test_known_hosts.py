"""Reading known_hosts files: patterns, hashes, ports, several keys for a name, and what forbids."""

from __future__ import annotations

from typing import TYPE_CHECKING

import paramiko
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpucluster.cluster.transport import known_hosts

if TYPE_CHECKING:
    from pathlib import Path

OLD, NEW, RSA = "AAAAold", "AAAAnew", "AAAArsa"


def entries(tmp_path: Path, text: str) -> tuple[known_hosts.Entry, ...]:
    file = tmp_path / "known_hosts"
    file.write_text(text)
    return known_hosts.read([file, tmp_path / "absent", tmp_path])


# one salt for all: test ids are to be the same in every xdist worker
HASHED = paramiko.HostKeys.hash_host("login01", "|1|vl7iq1a7HPeraiOfopD4wBLFdlk=|")


@pytest.mark.parametrize(
    ("line", "name", "verdict"),
    [
        (f"login01 ssh-ed25519 {NEW}", "login01", "known"),
        (f"login01 ssh-ed25519 {NEW} a comment", "LOGIN01", "known"),
        (f"login01,10.0.0.1 ssh-ed25519 {NEW}", "10.0.0.1", "known"),
        (f"login01 ssh-ed25519 {OLD}", "login01", "changed"),
        (f"login01 ssh-rsa {NEW}", "login01", "changed"),
        (f"login ssh-ed25519 {OLD}\nlogin ssh-ed25519 {NEW}", "login", "known"),  # an alias of two nodes
        (f"login02 ssh-ed25519 {NEW}", "login01", "unknown"),
        (f"[login01]:2222 ssh-ed25519 {NEW}", "[login01]:2222", "known"),
        (f"[login01]:2222 ssh-ed25519 {NEW}", "login01", "unknown"),
        (f"login01 ssh-ed25519 {NEW}", "[login01]:2222", "unknown"),
        (f"login* ssh-ed25519 {NEW}", "login01", "known"),
        (f"gpu??,!gpu13 ssh-ed25519 {NEW}", "gpu12", "known"),
        (f"gpu??,!gpu13 ssh-ed25519 {NEW}", "gpu13", "unknown"),
        (f"gpu[01] ssh-ed25519 {NEW}", "gpu0", "unknown"),
        (f"{HASHED} ssh-ed25519 {NEW}", "login01", "known"),
        (f"{HASHED} ssh-ed25519 {OLD}", "login01", "changed"),
        (f"{HASHED} ssh-ed25519 {NEW}", "login02", "unknown"),
        (f"login01 ssh-ed25519 {NEW}\n@revoked * ssh-ed25519 {NEW}", "login01", "changed"),
        (f"@revoked login01 ssh-ed25519 {OLD}\nlogin01 ssh-ed25519 {NEW}", "login01", "known"),
        (f"@cert-authority * ssh-ed25519 {NEW}", "login01", "unknown"),
        (f"# login01 ssh-ed25519 {NEW}", "login01", "unknown"),
        (f"login01 {NEW}\n|1|damaged|x ssh-ed25519 {NEW}", "login01", "unknown"),
    ],
)
def test_what_a_file_says_of_a_key(tmp_path: Path, line: str, name: str, verdict: str) -> None:
    assert known_hosts.judge(entries(tmp_path, line), name, "ssh-ed25519", NEW) == verdict


def test_the_kinds_of_known_keys_are_asked_for_first(tmp_path: Path) -> None:
    text = f"login01 ssh-rsa {RSA}\nlogin01 ecdsa-sha2-nistp256 {NEW}\nother ssh-ed25519 {OLD}\n"
    found = entries(tmp_path, text)
    assert known_hosts.kinds(found, "login01") == ("rsa-sha2-512", "rsa-sha2-256", "ecdsa-sha2-nistp256")


@given(st.text(), st.text())
def test_any_text_vouches_for_nobody_it_does_not_name(text: str, name: str) -> None:
    found = [entry for line in text.splitlines() if (entry := known_hosts._entry(line)) is not None]
    assert known_hosts.judge(found, f"{name}-unnamed", "ssh-ed25519", "no key of any text") != "known"
    known_hosts.kinds(found, name)
