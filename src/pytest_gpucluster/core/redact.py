"""Redaction of secrets in everything that is stored or shown: command lines, environments, output of nodes.

A secret is recognised by the name of its variable, key or option, or by the form of its value; a password in free text
is not recognised. Words of this package's own messages are not taken for values: `_PROSE`.
"""

from __future__ import annotations

import errno
import os
import re
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
_SHAPES = (
    r"gh[opsur]_|github_pat_|glpat-|xox[abprs]-|sk-|pk-|hf_|nvapi-|AKIA|ASIA|AIza|ya29\.|npm_|pypi-|dop_v1_"
)
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
# The words after "NAME: " in messages of this package, where NAME is a path, host or check: the next word is no value.
# Only that word would be redacted, not the rest of a sentence. tests/core/test_redact.py compares this list with all messages.
_PROSE = (
    r"a|absent|all|an|another|ansible_port|apt-get|bad|baseline|baselines|belongs|bus|cannot|check|choose|"
    r"compared|correct|could|cut|damaged|does|drain|environment|every|exists|exit|failed|generation|give|"
    r"gpucluster|has|have|holds|HTTP|in|index|install|is|it|its|judge|key|key_file|killed|load|logs|look|make|"
    r"measured|more|must|name|names|nccl-tests|nccl\.command|needs|neither|node|node_exporter|not|not_applicable|"
    r"nothing|nvidia-smi|one|only|output|partition|printed|PrivateData|Prometheus|raise|Rank|ranks|removed|repair|"
    r"request|requesting|restarted|row|rows|run|saturated|say|see|set|settings|Slurm|slurmd|srun|stop|stopped|"
    r"submitit|task|tensorflow|the|there|this|too|torch|tried|UCX|use|what|whether|written"
)
# and the system's errors about a path
_ERRORS = "|".join(sorted({re.escape(os.strerror(number).split()[0]) for number in errno.errorcode}))
_MESSAGE = (
    rf"(?!: (?:(?:{_PROSE}|{_ERRORS})(?:[ ,]|\Z)|--[a-z]))"
    r"(?!(?<=(?<![\w.])ray\.token): )"  # the only check with the name of a secret
    r"(?!:\d{1,5}:(?:\d{1,4}:)?(?:\s|\Z))"  # a line, and column, of a file
)
_NAME = rf"(?<![A-Za-z0-9_])[A-Za-z0-9_]{{0,80}}?{_WORD}[A-Za-z0-9_-]{{0,80}}"
_SWITCH = rf"(?:true|false|yes|no|on|off|none|null|0|1|{REDACTED})"
_HARMLESS = rf"(?!{_SWITCH}(?:$|[\s\"',;)}}\]\\\x1b]))"
_QUOTE = r"\\{0,3}['\"]"  # also escaped, as in a repr or in JSON
_ESCAPED = r"\\{1,3}\"[^\"\\\n]*(?:\\{1,3}\")?"  # JSON in a text of JSON
_SGR = r"(?:\x1b\[[\d;]{0,20}m){0,4}"  # colours of a log for terminals, around name and value
_VALUE = rf"{_HARMLESS}{_SGR}(?:{_ESCAPED}|\"[^\"\n]*\"?|'[^'\n]*'?|[^\s\"',;)}}\]]+)"
_IS = rf"{_SGR}\\{{0,3}}[\"']?{_SGR}\s{{0,9}}[=:]\s{{0,9}}"
_PEM = r"-----{} [A-Z ]{{0,40}}PRIVATE KEY(?: BLOCK)?-----"
_OPTION = r"--[\w-]{0,80}?(?:password|passwd|token|secret|api-?key|access-?key)[\w-]{0,80} +"
_PATTERNS: tuple[tuple[re.Pattern[str], str], ...] = (
    (
        re.compile(rf"{_PEM.format('BEGIN')}.*?(?:{_PEM.format('END')}|\Z)", re.DOTALL),
        REDACTED,
    ),
    (
        re.compile(r"(\b(?:Authorization[\"']?\s{0,9}[:=]|Cookie[\"']?\s{0,9}:)\s{0,9})[^\n]+", re.IGNORECASE),
        rf"\1{REDACTED}",
    ),
    (re.compile(r"(\bBearer\s{1,9})[\w.~+/=-]{8,}", re.IGNORECASE), rf"\1{REDACTED}"),
    (re.compile(r"(://[^/\s:@]{0,200}):[^/\s]{1,500}@"), rf"\1:{REDACTED}@"),
    (
        re.compile(rf"(?P<quote>{_QUOTE})({_NAME}=)(?:[^'\"\\\n]|(?!{_QUOTE})\\)*(?P=quote)", re.IGNORECASE),
        rf"\g<quote>\2{REDACTED}\g<quote>",
    ),
    (re.compile(rf"({_NAME}{_MESSAGE}{_IS}){_VALUE}", re.IGNORECASE), rf"\1{REDACTED}"),
    (
        re.compile(rf"({_OPTION})(?!-){_VALUE}"),
        rf"\1{REDACTED}",
    ),
    (
        re.compile(
            r"(?<![A-Za-z0-9_-])(?:(?:gh[opsur]_|github_pat_|glpat-|xox[abprs]-|sk-|hf_|nvapi-|ya29\.|npm_|pypi-|dop_v1_)"
            r"[\w-]{16,}|(?:AKIA|ASIA)[0-9A-Z]{16}|AIza[\w-]{30,}|eyJ[\w-]{8,}\.[\w-]{8,}(?:\.[\w-]*)?)"
        ),
        REDACTED,
    ),
)  # fmt: skip
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
    return bool(_SECRET_VALUE.search(value) or _HEX.search(value) or any(map(_is_dense, _RUN.findall(value))))


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
    """Return whether a text may hold a secret; `text` changes no other text.

    No pattern spans the `=` between a key and its value.
    """
    found = _ANY_LOWER.search(given.lower()) if given.isascii() else _ANY.search(given)
    return found is not None


_cached_is_suspect = lru_cache(_CACHE_SIZE)(is_suspect)


def _is_suspect(given: str) -> bool:
    return _cached_is_suspect(given) if len(given) <= _SHORT else is_suspect(given)


def text(given: str) -> str:
    """Return a text without the secrets in it: NAME=value, 'name: value', --name value, URLs, tokens, private keys."""
    if not _is_suspect(given):
        return given
    for pattern, instead in _PATTERNS:
        given = pattern.sub(instead, given)
    return given


def words(argv: Iterable[str]) -> list[str]:
    """Return a command line without secrets, also without a word that follows an option like --password."""
    found: list[str] = []
    for word in argv:
        both = text(f"{found[-1]} {word}") if found and found[-1].startswith("--") else ""
        found.append(
            REDACTED if both.endswith(REDACTED) and not text(word).endswith(REDACTED) else text(word)
        )
    return found


def everything(data: Any, clean: Callable[[str], str] = text) -> Any:
    """Return plain data without secrets, in texts and in values under the name of a secret.

    `clean`: the function that redacts a text; it may change more.
    """
    if isinstance(data, str):
        return clean(data)
    if isinstance(data, dict):
        return {
            clean(key) if isinstance(key, str) else key: _under(str(key), it, clean)
            for key, it in data.items()
        }
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
