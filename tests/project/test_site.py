"""The documentation site: which pages it has, and how links and tables are adapted to it. `make docs` checks all links."""

from __future__ import annotations

import re
import sys

import pytest
from docs_helpers import HOME, ROOT

sys.path.insert(0, str(ROOT / "tools"))

import mkdocs_hooks


def test_every_page_is_in_the_navigation() -> None:
    listed = re.findall(r"^ +- (?:\w+: )?(\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    docs = ROOT / "docs"
    pages = {str(path.relative_to(docs)) for path in docs.rglob("*.md") if path.parent.name != "suites"}
    pages |= set(mkdocs_hooks.OUTSIDE.values())
    assert sorted(listed) == sorted(pages)


def test_every_suite_is_in_the_navigation() -> None:
    config = type("Config", (), {"nav": [{"Home": "index.md"}, {"Suites": []}]})()
    mkdocs_hooks.on_config(config)
    suites = {path.name for path in (ROOT / "docs" / "suites").iterdir()}
    assert {f"suites/{name}" for name in suites} == set(config.nav[1]["Suites"])


@pytest.mark.parametrize(
    ("page", "text", "on_the_site"),
    [
        ("ci.md", "[a](drain.md#resume)", "[a](drain.md#resume)"),
        ("ci.md", "[a](../CONTRIBUTING.md#a-profile)", "[a](contributing.md#a-profile)"),
        ("suites/os.md", "[a](../../README.md)", "[a](../index.md)"),
        ("contributing.md", "[a](docs/tests.md)", "[a](tests.md)"),
        ("index.md", f"[a][]\n\n[a]: {HOME}/blob/main/docs/ssh.md", "[a][]\n\n[a]: ssh.md"),
        ("ci.md", "[a](../LICENSE)", f"[a]({HOME}/blob/main/LICENSE)"),
        ("ci.md", "[a](../tests)", f"[a]({HOME}/tree/main/tests)"),
        ("ci.md", "[a](../no-such-file)", "[a](../no-such-file)"),  # MkDocs reports it
        ("ci.md", "```\n[a](../LICENSE)\n```", "```\n[a](../LICENSE)\n```"),
        ("ci.md", r"| `a\|b` \| c |", r"| `a|b` \| c |"),
        ("ci.md", r"`a\|b`", r"`a\|b`"),
        ("ci.md", "a\n\n<!-- b\n\n`c`\n-->\n", "a\n\n"),
    ],
)
def test_a_page_is_adapted_to_the_site(page: str, text: str, on_the_site: str) -> None:
    assert mkdocs_hooks.adapted(text, page) == on_the_site
