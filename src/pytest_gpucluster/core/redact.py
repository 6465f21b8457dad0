"""Redaction of secrets in everything that is stored or shown: command lines, environments, output of nodes.

A secret is recognised by the name of its variable, key or option, or by the form of its value; a password in free text
is not recognised. Our own messages pass through here too: none has the name of a secret before a colon.
"""

from __future__ import annotations

import html
import re
import sys
from bisect import bisect_right
from functools import lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

REDACTED = "<redacted>"

# --- variables, with separate name and value: strict, since their text need not stay readable

_SECRET_NAME = re.compile(
    r"TOKEN|SECRET|PASSW|PASSPHRASE|CREDENTIAL|PRIVATE|COOKIE|AUTH|SESSION|JWT|SIGNATURE|APIKEY|"
    r"(?:^|_)(?:KEY|PASS|PWD_?HASH|PAT|DSN)(?:$|_)|(?:ACCESS|API|SSH|GPG)_?KEY|CONNECTION_?STRING|WEBHOOK",
    re.IGNORECASE,
)
_SHAPES = r"gh[opsur]_|github_pat_|glpat-|xox[abprs]-|sk-|pk-|hf_|nvapi-|AKIA|ASIA|AIza|ya29\.|npm_|pypi-|dop_v1_"
_SECRET_VALUE = re.compile(
    rf"-----BEGIN|://[^/\s:@]*:[^/\s@]+@|(?:^|[\s=:,;\"'])(?:{_SHAPES}|eyJ[\w-]+\.)|Bearer\s|Basic\s|"
    r"(?:token|secret|passw(?:or)?d|api_?key|credential)\w*['\"]?\s*[=:]",
    re.IGNORECASE,
)
# a long mix of letters and digits, as in keys: no path, number or hostlist
_RUN = re.compile(r"[A-Za-z0-9+_=-]{32,}")
_HEX = re.compile(r"(?<![0-9A-Fa-f])[0-9A-Fa-f]{32,}")
_LONGEST = 1 << 16  # characters of a value that is checked; a longer one is no setting and is redacted

# --- text for people, which must stay readable

# not TOKENIZERS_PARALLELISM, not Slurm's AuthType; every quantifier is bounded, since the text comes from nodes
_WORD = (
    r"(?:TOKEN(?!IZ)|SECRET|PASSW|PASSPHRASE|CREDENTIAL|JWT(?![A-Za-z])|COOKIE|WEBHOOK|CONNECTION[_-]?STRING|"
    r"(?:ACCESS|ACCOUNT|API|SSH|GPG|PRIVATE|AUTH|SESSION|SIGNING|ENCRYPTION|LICEN[CS]E)[_-]?KEY|"
    r"_(?:KEY|PASS|PAT|DSN|AUTH|PWD)(?![A-Za-z0-9_]))"
)
_NAME = rf"(?<![A-Za-z0-9_])[A-Za-z0-9_]{{0,80}}?{_WORD}[A-Za-z0-9_-]{{0,80}}"
_PLACE = r"(?!:\d{1,5}:(?:\d{1,4}:)?(?:\s|\Z))"  # not the line, and column, of a file
_SWITCH = rf"(?:true|false|yes|no|on|off|none|null|0|1|{REDACTED})"
_HARMLESS = rf"(?!\+{{0,9}}{_SWITCH}(?:$|[\s\"',;)}}\]\\\x1b]))"
_QUOTE = r"\\{0,3}['\"]"  # also escaped, as in a repr or in JSON
_ESCAPED = r"\\{1,3}\"[^\"\\\n]*(?:\\{1,3}\")?"  # JSON in a text of JSON
_SGR = r"(?:\x1b\[[\d;]{0,20}m){0,4}"  # colours of a log for terminals, around name and value
_VALUE = rf"{_HARMLESS}{_SGR}(?:{_ESCAPED}|\"[^\"\n]*\"?|'[^'\n]*'?|[^\s\"',;)}}\]]+)"
_IS = rf"{_SGR}\\{{0,3}}[\"']?{_SGR}[\s+]{{0,9}}[=:][\s+]{{0,9}}"
_COLOUR = r"[\x1b?]\[[\d;?]{0,20}[A-Za-z]"  # it ends with a letter, also where its first character became '?'
_PEM = r"-----{}[ +][A-Z +]{{0,40}}PRIVATE[ +]KEY(?:[ +]BLOCK)?-----"
_OPTION = r"--[\w-]{0,80}?(?:password|passwd|token|secret|api-?key|access-?key)[\w-]{0,80}[ +]+"
# the group `secret` of a match is replaced; a + stands for a space in a URL
_PATTERNS: tuple[re.Pattern[str], ...] = (
    re.compile(rf"(?P<secret>{_PEM.format('BEGIN')}.*?(?:{_PEM.format('END')}|\Z))", re.DOTALL),
    re.compile(
        rf"(?:\b|{_COLOUR})(?:Authorization[\"']?\s{{0,9}}[:=]|Cookie[\"']?\s{{0,9}}:)\s{{0,9}}(?P<secret>[^\n]+)",
        re.IGNORECASE,
    ),
    re.compile(rf"(?:\b|{_COLOUR})Bearer[\s+]{{1,9}}(?P<secret>[\w.~+/=-]{{8,}})", re.IGNORECASE),
    re.compile(r"://[^/\s:@]{0,200}:(?P<secret>[^/\s]{1,500})@"),
    re.compile(rf"(?P<quote>{_QUOTE}){_NAME}=(?P<secret>(?:[^'\"\\\n]|(?!{_QUOTE})\\)*)(?P=quote)", re.IGNORECASE),
    # only looks ahead: a value may be the name of the next secret
    re.compile(rf"(?={_NAME}{_PLACE}{_IS}(?P<secret>{_VALUE}))", re.IGNORECASE),
    re.compile(rf"{_OPTION}(?!-)(?P<secret>{_VALUE})"),
    re.compile(
        rf"(?:(?<![A-Za-z0-9_-])|(?<=-----)|{_COLOUR})"  # also behind a private key
        r"(?P<secret>(?:gh[opsur]_|github_pat_|glpat-|xox[abprs]-|sk-|hf_|nvapi-|ya29\.|npm_|pypi-|"
        r"dop_v1_)[\w-]{16,}|(?:AKIA|ASIA)[0-9A-Z]{16}|AIza[\w-]{30,}|eyJ[\w-]{8,}\.[\w-]{8,}(?:\.[\w-]*)?)"
    ),
)
# escapes of repr and shells, JSON, XML and URLs
_HEX_2, _HEX_4 = r"[0-9A-Fa-f]{2}", r"[0-9A-Fa-f]{4}"
_ESCAPE = re.compile(
    rf"\\(?:x{_HEX_2}|u{_HEX_4}|U{_HEX_4}{_HEX_4}|[0-3][0-7]{{2}}|[abefnrtv\\/'\"])|"
    rf"%{_HEX_2}|&(?:#[0-9]{{1,7}}|#[xX][0-9A-Fa-f]{{1,6}}|amp|lt|gt|quot|apos|nbsp);"
)
_PLAIN = {"a": "\a", "b": "\b", "e": "\x1b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_NESTED = 5  # escapes within escapes: JSON in a repr in a URL
# Few texts contain any of these: one search finds out. Lower case takes an eighth of the time of IGNORECASE.
_WORDS = (
    r"token|secret|passw|passphrase|credential|jwt|cookie|webhook|string|key|_pass|_pat|_dsn|_auth|_pwd|bearer|authoriz|"
    r"://|gh[opsur]_|glpat-|xox|sk-|hf_|nvapi-|ya29|npm_|pypi-|dop_v1|akia|asia|aiza|eyj"
)
_ANY, _ANY_LOWER = re.compile(_WORDS, re.IGNORECASE), re.compile(_WORDS)
_SHORT = 200  # characters of a text whose result is cached: names, units, devices, causes
_CACHE_SIZE = 16_384


def is_secret(name: str, value: str) -> bool:
    """Return whether a variable holds a secret, by its name or by the form of its value."""
    if len(value) > _LONGEST or _SECRET_NAME.search(name):
        return True
    if _SECRET_VALUE.search(value) or _HEX.search(value) or any(map(_is_dense, _RUN.findall(value))):
        return True
    return text(value) != value  # behind an escape


def _is_dense(run: str) -> bool:
    return all(any(test(char) for char in run) for test in (str.isupper, str.islower, str.isdigit))


def variables(given: Iterable[str]) -> dict[str, str]:
    """Return {name: value} of NAME=value strings, with secrets replaced."""
    found: dict[str, str] = {}
    for variable in given:
        name, _, value = variable.partition("=")
        found[name] = REDACTED if is_secret(name, value) else value
    return found


def is_suspect(given: str) -> bool:
    """Return whether a text may hold a secret, also behind escapes; `text` changes no other text.

    No pattern spans the `=` between a key and its value.
    """
    for _ in range(_NESTED):
        if (_ANY_LOWER.search(given.lower()) if given.isascii() else _ANY.search(given)) is not None:
            return True
        given, steps = _unescaped(given)
        if not steps:
            return False
    return False


_cached_is_suspect = lru_cache(_CACHE_SIZE)(is_suspect)


def _is_suspect(given: str) -> bool:
    return _cached_is_suspect(given) if len(given) <= _SHORT else is_suspect(given)


def text(given: str) -> str:
    """Return a text without the secrets in it: NAME=value, 'name: value', --name value, URLs, tokens, private keys.

    Secrets behind escapes of repr, JSON, XML and URLs are found too; the text around them stays as it is.
    """
    if not _is_suspect(given):
        return given
    return _replaced(given, [*_secrets(given), *_escaped_secrets(given, _NESTED)])


def _replaced(given: str, spans: Iterable[tuple[int, int]]) -> str:
    """Return a text with these parts replaced; parts that overlap become one."""
    pieces, done = [], 0
    for start, end in sorted(spans):
        if start >= done:
            pieces += [given[done:start], REDACTED]
        done = max(done, end)
    return "".join([*pieces, given[done:]])


def _secrets(given: str) -> list[tuple[int, int]]:
    return [match.span("secret") for pattern in _PATTERNS for match in pattern.finditer(given)]


def _escaped_secrets(given: str, depth: int) -> list[tuple[int, int]]:
    """Return where secrets stand in a text that can be seen only when its escapes are undone."""
    inner, steps = _unescaped(given)
    if not steps or depth == 0:
        return []
    found = [span for span in _secrets(inner) if not inner.startswith(REDACTED, span[0])]
    found += _escaped_secrets(inner, depth - 1)
    return [(_before(steps, start), _before(steps, end)) for start, end in found]


def _unescaped(given: str) -> tuple[str, list[tuple[int, int]]]:
    """Return a text with one layer of escapes undone, and (its place, place in the given text) at each end of an escape."""
    if "\\" not in given and "%" not in given and "&" not in given:
        return given, []
    pieces: list[str] = []
    steps: list[tuple[int, int]] = []
    at = done = 0
    for match in _ESCAPE.finditer(given):
        char = _unescape(match[0])
        pieces += [given[done : match.start()], char]
        before = at + match.start() - done
        at, done = before + len(char), match.end()
        steps += [(before, match.start()), (at, done)]
    return "".join([*pieces, given[done:]]), steps


def _before(steps: list[tuple[int, int]], offset: int) -> int:
    """Return where a place of the text without escapes stood before: ends of escapes, and what lies between them."""
    index = bisect_right(steps, (offset, sys.maxsize))
    new, old = steps[index - 1] if index else (0, 0)
    return old + offset - new


def _unescape(escape: str) -> str:
    """Return what one escape stands for; a character that does not exist becomes '?'."""
    if escape[0] == "&" and escape[1] != "#":
        return html.unescape(escape)
    digits = escape.strip("\\%&#xXuU;")
    if escape[0] == "\\" and len(escape) == len("\\n"):
        return _PLAIN.get(escape[1], escape[1])
    octal = escape[0] == "\\" and escape[1].isdecimal()
    decimal = escape[0] == "&" and escape[2].isdecimal()
    code = int(digits, 8 if octal else 10 if decimal else 16)
    return chr(code) if code <= sys.maxunicode else "?"


def words(argv: Iterable[str]) -> list[str]:
    """Return a command line without secrets, also without a word that follows an option like --password."""
    found: list[str] = []
    for word in argv:
        both = text(f"{found[-1]} {word}") if found and found[-1].startswith("--") else ""
        found.append(REDACTED if both.endswith(REDACTED) and not text(word).endswith(REDACTED) else text(word))
    return found


def everything(data: Any, clean: Callable[[str], str] = text) -> Any:
    """Return plain data without secrets, in texts and in values under the name of a secret.

    `clean`: the function that redacts a text; it may change more.
    """
    if isinstance(data, str):
        return clean(data)
    if isinstance(data, dict):
        return {clean(key) if isinstance(key, str) else key: _under(str(key), it, clean) for key, it in data.items()}
    return [everything(value, clean) for value in data] if isinstance(data, (list, tuple)) else data


def _under(key: str, value: Any, clean: Callable[[str], str]) -> Any:
    secret = _is_suspect(key) and text(f"{key}=x").endswith(REDACTED)
    if isinstance(value, (list, tuple)) and secret:
        return [_under(key, one, clean) for one in value]
    if not isinstance(value, str):
        return everything(value, clean)
    if secret and value and not re.fullmatch(_SWITCH, value, re.IGNORECASE):
        return REDACTED
    return clean(value)
