"""The man page: every command and option, in macros that groff formats without a warning."""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from pytest_gpucluster.cli import main as cli
from pytest_gpucluster.cli.man_page import man_page
from pytest_gpucluster.cli.reference import leaves

if TYPE_CHECKING:
    from pathlib import Path

PAGE = man_page(cli._parser(), "1.2")


def test_every_option_is_in_it_with_its_meaning() -> None:
    plain = PAGE.replace("\\-", "-")
    for words, parser in leaves(cli._parser()):
        section = plain.partition(f".SS gpucluster {' '.join(words)}\n")[2].partition("\n.S")[0]
        for action in parser._actions:
            if action.option_strings and "--help" not in action.option_strings:
                assert f"\\fB{action.option_strings[0]}" in section
    assert "\n\\&\n" not in plain  # an argument without a meaning
    assert "%(default)s" not in plain
    assert "Compare two runs; exit status 3 if something got worse.\n" in plain


def test_text_is_no_macro(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    odd = argparse.ArgumentParser("gpucluster", description="'x a\\fB--b")
    odd.add_subparsers().add_parser("one", help=".so /etc/passwd").add_argument("--x", help=".so /etc/passwd")
    assert ".so" not in {line.split()[0] for line in man_page(odd, "1").splitlines() if line}
    macros = {line.split()[0] for line in PAGE.splitlines() if line.startswith((".", "'"))}
    assert macros == {".TH", ".SH", ".SS", ".TP", ".B", ".I", ".BR"}
    assert cli.main(["man"]) == 0
    assert capsys.readouterr().out.splitlines()[1:] == PAGE.splitlines()[1:]
    page = tmp_path / "man1" / "gpucluster.1"
    assert cli.main(["man", "--output", str(page)]) == 0
    assert page.read_text().splitlines()[1:] == PAGE.splitlines()[1:]


def test_formatter_finds_no_fault() -> None:
    if shutil.which("groff") is None:
        pytest.skip("groff is not installed")
    done = subprocess.run(
        ["groff", "-man", "-Tutf8", "-ww"], input=PAGE, capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    shown = re.sub(r"\x1b\[[\d;]*m|.\x08", "", done.stdout)
    assert "gpucluster sandbox fault" in shown
    assert "--from-nodes" in shown
