"""The stack of sshd in the formats of Debian (@include) and RHEL (include, substack)."""

from __future__ import annotations

import pytest

from pytest_gpucluster.core.errors import NotAvailable, ProbeError
from pytest_gpucluster.core.probe import Answer
from pytest_gpucluster.suites.isolation.pam import PAM, PamFacts

DEBIAN = """\
pam|login:@include common-session
pam|sshd:@include common-auth
pam|sshd:account  required     pam_slurm_adopt.so
pam|sshd:@include common-account
pam|sshd:@include common-session
sshd|yes
module|/usr/lib/x86_64-linux-gnu/security/pam_slurm_adopt.so
usepam|usepam yes
"""
RHEL = """\
pam|postlogin:session     [default=1]   pam_lastlog.so nowtmp showfailed
pam|sshd:auth       substack     password-auth
pam|sshd:account    include      password-auth
pam|sshd:-account   required     pam_slurm_adopt.so action_adopt_failure=deny
pam|sshd:session    include      password-auth
pam|sshd:session    include      postlogin
sshd|yes
module|/lib64/security/pam_slurm_adopt.so
module|/usr/lib64/security/pam_slurm_adopt.so
usepam|UsePAM yes
"""
MODULE = "/usr/lib/x86_64-linux-gnu/security/pam_slurm_adopt.so"
OF_DEBIAN = vars(PamFacts(True, "pam_slurm_adopt.so", MODULE, "yes"))
OF_RHEL = {"module": "/lib64/security/pam_slurm_adopt.so"}
ADOPTS = "pam|sshd:account  required"
ELSEWHERE = {"adopts": "/opt/pam_slurm_adopt.so", "module": ""}


def read(text: str) -> PamFacts:
    return PAM.parse(Answer("gpu01", 0, text.encode()))


def test_the_stack_of_debian_and_changes_of_it() -> None:
    for old, new, change in (
        ("", "", {}),
        (DEBIAN, RHEL, OF_RHEL),
        # one line changes one fact
        (f"{ADOPTS}     pam_slurm_adopt.so\n", "", {"adopts": ""}),
        (ADOPTS, "pam|login:account  required", {"adopts": ""}),
        (ADOPTS, "pam|sshd:session  required", {"adopts": ""}),
        (ADOPTS, "pam|sshd:account [success=ok new_authtok_reqd=ok default=die]", {}),
        (f"module|{MODULE}\n", "", {"module": ""}),
        ("required     pam_slurm_adopt.so", "required /opt/pam_slurm_adopt.so", ELSEWHERE),
        ("usepam|usepam yes", "usepam|", {"use_pam": ""}),
        # the module is in an included file
        (f"{ADOPTS}     pam_slurm_adopt.so", f"pam|common-account:{ADOPTS[9:]} pam_slurm_adopt.so", {}),
        (f"{ADOPTS}     pam_slurm_adopt.so", f"pam|sshd:account include a\npam|a:{ADOPTS[9:]} pam_slurm_adopt.so", {}),
        ("sshd|yes\n", "", {"readable": False}),
        # a file that includes itself ends the search
        ("pam|sshd:@include common-auth", "pam|sshd:@include sshd", {}),
    ):
        assert old in DEBIAN
        assert vars(read(DEBIAN.replace(old, new, 1))) == OF_DEBIAN | change


def test_an_answer_that_was_cut_is_no_fact() -> None:
    with pytest.raises(ProbeError):
        read(DEBIAN.partition("usepam")[0])
    with pytest.raises(NotAvailable):
        PAM.parse(Answer("gpu01", 1, b"", b"sudo: a password is required"))
