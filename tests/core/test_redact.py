"""What is taken out of texts, command lines, variables and data, and what stays: each value exactly."""

from __future__ import annotations

import html
import json
import re
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, quote_plus, unquote, unquote_plus
from xml.sax.saxutils import quoteattr

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpucluster.core import redact
from pytest_gpucluster.run.item_record import clean

if TYPE_CHECKING:
    from collections.abc import Callable

SUITES = Path(__file__).parents[1] / "suites"
S, R = "hunter2", "<redacted>"  # no shape of a secret: only what stands before it tells
LONG = "a1B2" * 8
ESC = "\x1b"

NAMES = """
TOKEN SECRET PASSWORD PASSWD PASSPHRASE CREDENTIALS JWT MY_COOKIE WEBHOOK WEBHOOK_URL CONNECTION_STRING
CONNECTIONSTRING ACCESS_KEY ACCOUNT_KEY ACCOUNTKEY API_KEY APIKEY SSH_KEY GPG_KEY PRIVATE_KEY AUTH_KEY SESSION_KEY
SIGNING_KEY ENCRYPTION_KEY LICENSE_KEY LICENCE_KEY MY_KEY MY_PASS MY_PAT MY_DSN MY_AUTH MYSQL_PWD
AWS_SECRET_ACCESS_KEY my_token X_Token_2 api-key TOKEN-2
"""
VARIABLES = """
TOKEN SECRET PASSWORD PASSPHRASE CREDENTIAL PRIVATE COOKIE AUTH SESSION JWT SIGNATURE APIKEY KEY MY_KEY KEY_ID PASS
MY_PASS PWDHASH PWD_HASH PAT A_PAT_B DSN ACCESSKEY ACCESS_KEY API_KEY SSHKEY SSH_KEY GPGKEY GPG_KEY
CONNECTIONSTRING CONNECTION_STRING WEBHOOK lower_token
"""
OTHER_VARIABLES = "PATH KEYBOARD MONKEY PWD PASSAGE PATTERN NCCL_DEBUG HOME"
SWITCHES = f"true FALSE yes no on off none null 0 1 {R}"
NO_SWITCHES = "truely 01 10 2 nope 0x1 offer"
PREFIXES = """
ghp_ gho_ ghs_ ghu_ ghr_ github_pat_ glpat- xoxa- xoxb- xoxp- xoxr- xoxs- sk- hf_ nvapi- ya29. npm_ pypi- dop_v1_
"""


def test_a_value_under_the_name_of_a_secret_is_taken_out() -> None:
    for word in NAMES.split():
        assert redact.text(f"a {word}={S} b") == f"a {word}={R} b"
        assert redact.text(f"a {word}: {S} b") == f"a {word}: {R} b"
        assert redact.everything({word: S}) == {word: R}
    assert [name for name in VARIABLES.split() if not redact.is_secret(name, "x")] == []
    assert [name for name in (*OTHER_VARIABLES.split(), "") if redact.is_secret(name, "x")] == []
    given = ["A=1=2", "B", "C=", f"WANDB_API_KEY={S}=y", "A=3"]
    assert redact.variables(given) == {"A": "3", "B": "", "C": "", "WANDB_API_KEY": R}
    kelvin, long_s = f"API_\N{KELVIN SIGN}EY={S}", f"my_\N{LATIN SMALL LETTER LONG S}ecret={S}"
    for folded in (kelvin, long_s):  # K and S where case is ignored
        assert redact.is_suspect(folded)
        assert redact.text(folded).endswith(R)
    assert redact.is_suspect("x" * 300 + "Token")
    assert not redact.is_suspect("x" * 300)


def test_a_switch_is_no_secret_and_what_begins_as_one_may_be() -> None:
    for value in SWITCHES.split():
        for end in ("", " x", *"\"',;)}]"):
            assert redact.text(f"USE_TOKEN={value}{end}") == f"USE_TOKEN={value}{end}"
    for value in NO_SWITCHES.split():
        assert redact.text(f"USE_TOKEN={value}") == f"USE_TOKEN={R}"


OPTIONS = "--token --db-password --client-secret --apikey --accesskey-id"
NO_SECRETS = """
TOKENIZERS_PARALLELISM=false TOKENIZER=fast JWTS=5x PWD=/root PATH=/bin OLDPWD=/tmp KEY=x monkey=3 BYPASS_X=1x
MY_KEYS=5x MY_PATH=/x NCCL_DEBUG=INFO http://gpu01:8080/metrics http://gpu01:8080/x@y a@b:c ssh://root@gpu01/
AKIA123 sk-short ghp_short eyJx.y task-npm_1234567890123456 token cookie eyJabcdefg.abcdefgh eyJabcdefgh.abcdefg
GPU-5ec84d8d-1111-2222-3333-444444444444 /clusters/my_secret:4:
sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855
"""


OTHER_TEXTS = """
AuthType=auth/munge AuthInfo=(null)
pkey: 0x8001
keyboard: us
--password --other
Bearer short
gpu01: token
-----BEGIN CERTIFICATE-----
Author: x
Basic block
the key needs its passphrase; load it into the agent with ssh-add
ray.authentication: driver: measured 1, expected 2
/clusters/my_secret:4: slurm.time: wrong
/clusters/my_secret:12345:1234: wrong
"""
SHORT = f"xBearer abcdefghij ghp_{'x' * 15} xoxc-{'x' * 16} AKIA{'A' * 15} akia{'A' * 16} AIza{'y' * 29}"


@pytest.mark.parametrize("text", [*NO_SECRETS.split(), *SHORT.split(), *OTHER_TEXTS.strip().splitlines()])
def test_what_is_no_secret_stays(text: str) -> None:
    assert redact.text(text) == text


def test_no_message_of_a_suite_looks_like_a_secret() -> None:
    messages = [path.read_text() for path in SUITES.glob("*/messages.txt")]
    assert messages
    for line in "".join(messages).splitlines():  # CHECK: CODE | PART | MEASURED | EXPECTED
        shown = line.replace(" | ", "\n", 1).replace(" | ", ": measured ", 1)
        assert redact.text(shown) == shown


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # quotes and ends
        (f'A_TOKEN="{S} {S}" b', f"A_TOKEN={R} b"),
        (f'A_TOKEN="{S}\nb', f"A_TOKEN={R}\nb"),
        (f"'A_TOKEN={S} {S}' b", f"'A_TOKEN={R}' b"),
        (f"\\'A_TOKEN={S} {S}\\' b", f"\\'A_TOKEN={R}\\' b"),  # in the repr of a text
        (f"'A_TOKEN={S} x\\'B_TOKEN={S} {S}\\' b'", f"'A_TOKEN={R}\\'B_TOKEN={R}\\' b'"),
        (f"'A_TOKEN={S}\\x {S}' b", f"'A_TOKEN={R}' b"),
        (f"'A_TOKEN={S} {S}\" b'", f"'A_TOKEN={R} {S}\" b'"),  # no pair of quotes: to the end of the word
        *((f"(A_TOKEN={S}{end}x", f"(A_TOKEN={R}{end}x") for end in " \t\n\"',;)}]"),
        (f"A_TOKEN=b B_SECRET={S} c", f"A_TOKEN={R} B_SECRET={R} c"),
        ("A_TOKEN=", "A_TOKEN="),
        # JSON in a text, as docker and wandb log it; JSON in JSON in a text
        (f'{{\\"password\\": \\"{S} {S}\\", \\"n\\": 1}}', f'{{\\"password\\": {R}, \\"n\\": 1}}'),
        (f'{{\\\\\\"password\\\\\\": \\\\\\"{S}\\\\\\"}}', f'{{\\\\\\"password\\\\\\": {R}}}'),
        # a log in colours (structlog, rich): name and value are coloured apart
        (f"{ESC}[36mapi_token{ESC}[0m={ESC}[35m{S}{ESC}[0m n=1", f"{ESC}[36mapi_token{ESC}[0m={R} n=1"),
        (f'{ESC}[1;36m"api_token"{ESC}[0m: {ESC}[35m"{S} {S}"{ESC}[0m', f'{ESC}[1;36m"api_token"{ESC}[0m: {R}{ESC}[0m'),
        # options
        (f"curl --token   '{S} {S}' x", f"curl --token   {R} x"),
        ("x --token true", "x --token true"),
        *((f"x {it} {S} y", f"x {it} {R} y") for it in OPTIONS.split()),
        # addresses
        (f"redis://:{S}@gpu01:6379/0", f"redis://:{R}@gpu01:6379/0"),
        (f"https://me:p@{S}@proxy:3128/x@y", f"https://me:{R}@proxy:3128/x@y"),
        (f"https://{'m' * 200}:{S}@x/", f"https://{'m' * 200}:{R}@x/"),
        # headers
        (f"Authorization: Basic {S} {S}\nHost: x", f"Authorization: {R}\nHost: x"),
        (f"'authorization' : {S}", f"'authorization' : {R}"),
        ("Cookie : abc", f"Cookie : {R}"),
        (f"Set-Cookie: a=b; sid={S}\nHost: x", f"Set-Cookie: {R}\nHost: x"),
        # no word is taken for prose
        (f"a.token: A_TOKEN={S} x", f"a.token: {R} x"),
        (f"a_token: password: {S} x", f"a_token: {R} {R} x"),
        (f"secret: --token {S} x", f"secret: {R} {R} x"),
        ("password: correct horse", f"password: {R} horse"),
        ("api_key: Permission denied", f"api_key: {R} denied"),
        ("ray.token: abc", f"ray.token: {R}"),
        ("secret:123456: x", f"secret:{R} x"),
        ("secret:4:x", f"secret:{R}"),
        ("secret:4:12345: x", f"secret:{R} x"),
        ("secret: loads x", f"secret: {R} x"),
        ("secret: -x", f"secret: {R}"),
        ("sent Bearer 12345678 x", f"sent Bearer {R} x"),
        ("sent bearer   aZ0_.~+/=- x", f"sent bearer   {R} x"),
        # private keys
        (f"a -----BEGIN PRIVATE KEY-----\n{S}\n-----END PRIVATE KEY----- b", f"a {R} b"),
        (f"-----BEGIN RSA PRIVATE KEY-----\n{S}\ncut", R),
        (f"-----BEGIN PGP PRIVATE KEY BLOCK-----\n{S}\n-----END PGP PRIVATE KEY BLOCK-----\nb", f"{R}\nb"),
        (f"-----END PRIVATE KEY-----hf_{'x' * 16} b", f"-----END PRIVATE KEY-----{R} b"),
        (f"-----BEGIN EC PRIVATE KEY-----\\n{S}\\n-----END EC PRIVATE KEY-----\\nb", f"{R}\\nb"),
        # escapes stay around a secret
        (f"a?x=1&amp;password%3D{S}%26n=1", f"a?x=1&amp;password%3D{R}"),  # to the end of the word
        (f"https%3A%2F%2Fme%3A{S}%40x%2F", f"https%3A%2F%2Fme%3A{R}%40x%2F"),
        (f"https:\\/\\/me:{S}@x\\/", f"https:\\/\\/me:{R}@x\\/"),
        (f"&quot;password&quot;: &quot;{S} {S}&quot;, b", f"&quot;password&quot;: {R}, b"),
        ("-----BEGIN+PRIVATE+KEY-----%0AMII%0A-----END+PRIVATE+KEY-----%0Ab", f"{R}%0Ab"),
        ("\\x68\\x66_" + "x" * 16 + "\\nb", f"{R}\\nb"),
        ("%68%66_" + "x" * 16, R),
        ("&#104;f_" + "x" * 16, R),
        # no escape: the text stays
        ("\\U00110000 \\ud83d &#0; &#x110000; token", "\\U00110000 \\ud83d &#0; &#x110000; token"),
    ],
)
def test_a_text_keeps_all_but_the_secret(text: str, expected: str) -> None:
    assert redact.text(text) == expected
    assert redact.text(expected) == expected


SHAPES = f"""
AKIAABCDEFGHIJKLMNOP ASIA0123456789ABCDEF AIza{"y" * 30} eyJabcdefgh.abcdefgh eyJabcdefgh.abcdefgh.sig-_9 eyJabcdefgh.abcdefgh.
"""


@pytest.mark.parametrize("token", [*(f"{start}{'x' * 16}" for start in PREFIXES.split()), *SHAPES.split()])
def test_a_token_is_known_by_its_shape(token: str) -> None:
    assert redact.text(f"a {token} b") == f"a {R} b"
    assert redact.text(token) == R
    assert redact.text(f"({token})") == f"({R})"
    assert redact.text(f"x{token}") == f"x{token}"  # the middle of a word
    assert redact.is_secret("X", token)


def _json(text: str) -> str:
    return json.dumps(text).replace("/", "\\/")  # as PHP and some loggers write it


def _each(form: str) -> Callable[[str], str]:
    return lambda text: "".join(form.format(ord(char)) if char.isascii() else char for char in text)


WRAPPED: list[Callable[[str], str]] = [
    *(repr, ascii, json.dumps, _json, html.escape, quoteattr, partial(quote, safe=""), quote, quote_plus),
    *map(_each, ("\\x{:02x}", "\\u{:04x}", "\\{:03o}", "&#{};", "%{:02X}")),
]
VALUES = st.text("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789", min_size=16, max_size=30)
PLANTED = (
    r"""
hf_{}
github_pat_{}
nvapi-{}
xoxb-{}
eyJhbGciOiJI.{}.x
A_TOKEN={}
password: {}
{{"api_key": "{}"}}
curl --token {}
https://me:{}@host/x
Bearer {}
Authorization: Basic {}
""".strip().splitlines()
    + ["-----BEGIN RSA PRIVATE KEY-----\n{}\n-----END RSA PRIVATE KEY-----"]
)
AROUND = st.sampled_from([*"\"'\\/=&", "", " ", "login ok\n", "a\tb\t", "\r\n", "\x1b[32m", "é ", "\x07"])


@given(VALUES, st.sampled_from(PLANTED), AROUND, AROUND, st.lists(st.sampled_from(WRAPPED), max_size=3))
def test_no_wrapping_hides_a_secret(
    value: str, planted: str, before: str, after: str, wrappings: list[Callable[[str], str]]
) -> None:
    text = before + planted.format(value) + after
    for wrap in wrappings:
        text = wrap(f"exit 0 {text}")
    shown = clean(text)
    for wrap in wrappings[::-1]:
        assert value not in shown, (text, shown)
        shown = _read(shown, wrap)
    assert value not in shown, (text, shown)
    assert clean(clean(text)) == clean(text)


def _read(text: str, wrap: Callable[[str], str]) -> str:
    """Return a text as a reader without error messages sees it, one wrapping less."""
    if wrap in (html.escape, quoteattr) or "&#" in wrap("x"):
        return html.unescape(text)
    if "%" in wrap("\n"):
        return unquote_plus(text) if wrap is quote_plus else unquote(text)
    return re.sub(r"\\(?:x..|u....|[0-7]{3}|.)", lambda found: redact._unescape(found[0]), text)


PLAIN_VALUES = f"""
1 /usr/bin:/bin gpu[01-99] http://a:80/ http://a@b/ xhf_1 {"x" * 100} {"1" * 31} {"X1" * 40} {"xY" * 40} {"g" * 32} {LONG[:31]}
0123456789abcdef0123456789abcde
"""


@pytest.mark.parametrize(
    "value",
    [
        *("-----BEGIN CERTIFICATE-----", "x://a:b@c", "x://:b@c", "Bearer x", "basic x"),
        *("my_token=x", "secret : x", "password: x", "passwd=x", "api_key=x", "apikey: x"),
        *("credentials=x", '{"tokens": 1}', "xoxb-1", "a,hf_1", "a:sk-1", "a;pk-1", "a=AKIA1"),
        *('a"ASIA1', "a'AIza1", "a npm_1", "pypi-1", "dop_v1_1", "eyJx.", "0123456789abcdef" * 2),
        *("0123456789ABCDEF" * 2, LONG, "g" * 30 + "G1", "g1H2c3D4e5F6g7H8+a1B2c3D4e5F6g7H"),
    ],
)
def test_a_variable_is_secret_by_its_value(value: str) -> None:
    assert redact.is_secret("X", value)
    assert [plain for plain in ("", *PLAIN_VALUES.split()) if redact.is_secret("X", plain)] == []


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["curl", "--password", S, "-v"], ["curl", "--password", R, "-v"]),
        (["curl", "--password", "-v"], ["curl", "--password", "-v"]),
        (["env", f"A_TOKEN={S}", "x"], ["env", f"A_TOKEN={R}", "x"]),
        (["--password", f"A_TOKEN={S}"], ["--password", f"A_TOKEN={R}"]),
        (["env", "MY_TOKEN=", "srun"], ["env", "MY_TOKEN=", "srun"]),
        (["--my-token", S], ["--my-token", R]),
        (["password", S], ["password", S]),
    ],
)
def test_words_of_a_command(argv: list[str], expected: list[str]) -> None:
    assert redact.words(argv) == expected
    assert redact.words(iter(argv)) == expected


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (f"A_TOKEN={S}", f"A_TOKEN={R}"),
        ("plain", "plain"),
        (None, None),
        (7, 7),
        (b"A_TOKEN=x", b"A_TOKEN=x"),  # no text: nothing writes bytes down
        ([f"A_TOKEN={S}", 1, None], [f"A_TOKEN={R}", 1, None]),
        ((f"A_TOKEN={S}", ("x", f"B_KEY={S}")), [f"A_TOKEN={R}", ["x", f"B_KEY={R}"]]),
        ((), []),
        ({}, {}),
        ({"password": S}, {"password": R}),
        ({"password": ""}, {"password": ""}),
        (
            {"tokens": 5, "token": 2.5, "secret": None, "auth_key": False},
            {"tokens": 5, "token": 2.5, "secret": None, "auth_key": False},
        ),
        ({"password": [S, ("x", S)]}, {"password": [R, [R, R]]}),
        ({"a": {"b": {"my_secret": S, "c": f"x://u:{S}@h"}}}, {"a": {"b": {"my_secret": R, "c": f"x://u:{R}@h"}}}),
        ({f"A_TOKEN={S}": 1, f"x://u:{S}@h": [f"B_KEY={S}"]}, {f"A_TOKEN={R}": 1, f"x://u:{R}@h": [f"B_KEY={R}"]}),
        ({3: S, None: S, ("password",): "x"}, {3: S, None: S, ("password",): "x"}),
        ({"password": "true story"}, {"password": R}),
        (
            {"said": f"x {R}", "message": f"ended with A_TOKEN={S}"},
            {"said": f"x {R}", "message": f"ended with A_TOKEN={R}"},
        ),
        ({"token": f"x {R}"}, {"token": R}),
    ],
)
def test_everything(given: Any, expected: Any) -> None:
    found = redact.everything(given)
    assert found == expected
    assert type(found) is type(expected)
    assert redact.everything(found) == expected
