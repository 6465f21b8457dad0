"""Signatures by the real ssh-keygen, and what is said where it is missing or too old."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING

import pytest
from signature_helpers import allow, make_key

from pytest_gpucluster.cli import signature
from pytest_gpucluster.core.errors import GpuClusterError

if TYPE_CHECKING:
    from pathlib import Path

DATA = b'{"format": 1}\n'


pytestmark = pytest.mark.thorough  # by ssh-keygen


@pytest.fixture
def key(tmp_path: Path) -> Path:
    return make_key(tmp_path / "key")


@pytest.fixture
def signed(key: Path) -> Path:
    path = key.with_name("record.json.sig")
    path.write_bytes(signature.sign(DATA, key))
    return path


def why(*arguments: object) -> str:
    with pytest.raises(GpuClusterError) as caught:
        signature.check_signer(DATA, *arguments)  # type: ignore[arg-type] # paths and a name
    return str(caught.value)


def test_a_signature_names_key_and_signer(signed: Path, key: Path) -> None:
    assert signature.check(DATA, signed).startswith("ED25519 key SHA256:")
    assert signature.check_signer(DATA, signed, allow(key)) == "ops@site"
    assert signature.check_signer(DATA, signed, allow(key), "ops@site") == "ops@site"


def test_changed_data_and_a_changed_signature_are_found(signed: Path) -> None:
    whole = signed.read_bytes()
    for at in range(0, len(whole), 29):
        signed.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(GpuClusterError):
            signature.check(DATA, signed)
    signed.write_bytes(whole)
    with pytest.raises(GpuClusterError, match="is no signature of these bytes for gpucluster-record: "):
        signature.check(DATA + b" ", signed)


def test_another_key_is_not_allowed(signed: Path, tmp_path: Path) -> None:
    other = allow(make_key(tmp_path / "other"))
    assert why(signed, other).startswith(f"{signed}: {other} does not allow the key that signed")
    assert why(signed, other, "ops@site").startswith(f"{signed}: {other} does not accept it")


def test_another_signer_or_namespace_is_not_accepted(signed: Path, key: Path) -> None:
    signers = allow(key)
    assert f"{signers} does not accept it as a signature of boss@site: " in why(signed, signers, "boss@site")
    assert "does not accept it as a signature of ops@site: " in why(signed, signers, "ops@site", "git")
    for options in ('namespaces="git"', 'valid-before="20200101"'):
        other = allow(key, options=options)
        assert "does not accept it as a signature of ops@site: " in why(signed, other, "ops@site")
    assert str(other) in why(signed, other)


def test_a_file_that_is_missing_is_named(signed: Path, tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    assert why(signed, gone).startswith(f"{gone}: is no file; --signers names a file of allowed signers")
    with pytest.raises(GpuClusterError, match="gone: is no file; --key names a private key"):
        signature.sign(DATA, gone)


def test_bits_that_base64_does_not_use_are_found() -> None:
    """ssh-keygen reads both texts as the same signature."""
    assert base64.b64decode("TQ==") == base64.b64decode("TR==")
    for body, is_plain in (("TQ==", True), ("TR==", False)):
        text = f"-----BEGIN SSH SIGNATURE-----\n{body}\n-----END SSH SIGNATURE-----\n"
        assert signature.is_armored(text) == is_plain
        assert not signature.is_armored(f"{text}\n")
        assert not signature.is_armored(f" {text}")


def test_a_missing_or_old_tool_is_named(key: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(key.parent))
    with pytest.raises(GpuClusterError, match="ssh-keygen is not installed here"):
        signature.sign(DATA, key)
    old = key.with_name("ssh-keygen")  # OpenSSH 8.0 answers so
    old.write_text("#!/bin/sh\necho 'unknown option -- Y\nusage: ssh-keygen [-q]' >&2\nexit 1\n")
    old.chmod(0o755)
    with pytest.raises(GpuClusterError, match="this ssh-keygen is too old for -Y sign"):
        signature.sign(DATA, key)
