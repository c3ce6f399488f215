"""One line of the log as text or JSON. Any value has a bounded, printable form; nothing here raises.

Keys are lower camel case, as in Kubernetes' structured logs; callers write them as Python names.
"""

from __future__ import annotations

import datetime as dt
import enum
import functools
import re
from collections.abc import Callable, Iterable, Mapping
from itertools import islice

import msgspec

from nvdp.model.reasons import Level

_TEXT_LIMIT = 4096  # characters of one value
_TRACE_LIMIT = 16384
_ITEM_LIMIT = 100
_DEPTH_LIMIT = 4
_MILLISECOND = 0.001
_INT_LIMIT = 1 << 63
_LEVEL_TEXT = {Level.DEBUG: "DEBUG", Level.INFO: "INFO ", Level.WARNING: "WARN ", Level.ERROR: "ERROR"}
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_WORD = re.compile(r"[^\s,;()]+")
_SHORT_UUID = re.compile(r"((?:GPU|MIG)-[0-9a-f]{8})-[0-9a-f-]{27}")
_SUBJECT = ("device", "index", "pci", "resource", "config")


def render_json(now: float, level: Level, reason: str, msg: str, fields: Mapping[str, object]) -> str:
    """One JSON object without line breaks: ``time level reason msg``, then the fields in the caller's order."""
    line: dict[str, object] = {
        "time": format_time(now),
        "level": level.name.lower(),
        "reason": reason,
        "msg": plain_text(msg),
    }
    for name, value in fields.items():
        line.setdefault(_camel(name), plain_trace(value) if name == "trace" else plain(value))
    return msgspec.json.encode(line).decode()


def render_text(now: float, level: Level, reason: str, msg: str, fields: Mapping[str, object]) -> str:
    """One line for people: whom it concerns, the sentence, then the fields that the sentence does not mention.

    A traceback follows on lines of its own, indented.
    """
    line = f"{format_time(now)} {_LEVEL_TEXT[level]} {reason:<19} {render_sentence(msg, fields)}"
    if fields.get("trace"):
        line += "".join(f"\n    {_CONTROL.sub('?', one)}" for one in plain_trace(fields["trace"]).splitlines())
    return line


def render_sentence(msg: str, fields: Mapping[str, object]) -> str:
    """Whom it concerns, the sentence, and the fields that it does not mention but for a trace: one line."""
    sentence = one_line(msg)
    told = set(_WORD.findall(sentence))
    rest = [
        text if name == "seconds" else f"{_camel(name)} {text}"
        for name, value in fields.items()
        if name not in _SUBJECT
        and name != "trace"
        and (text := _FIELD_TEXT.get(name, _field_text)(value))
        and not _is_told(text, sentence, told)
    ]
    return f"{_subject_text(sentence, fields)}{sentence}{'  (' + ', '.join(rest) + ')' if rest else ''}"


def format_time(now: float) -> str:
    """UTC, RFC 3339, milliseconds."""
    try:
        moment = dt.datetime.fromtimestamp(now, dt.UTC)
    except (OverflowError, OSError, ValueError):
        moment = dt.datetime.fromtimestamp(0, dt.UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def plain(value: object, depth: int = 0) -> object:
    """``value`` as JSON can carry it."""
    if isinstance(value, enum.Enum):
        value = getattr(value, "word", value.value)
    if value is None or isinstance(value, (bool, float)):
        return value
    if isinstance(value, int) and -_INT_LIMIT <= value < _INT_LIMIT:
        return value
    if isinstance(value, Mapping) and depth < _DEPTH_LIMIT:
        return {plain_text(key): plain(item, depth + 1) for key, item in islice(value.items(), _ITEM_LIMIT)}
    if isinstance(value, (list, tuple, set, frozenset)) and depth < _DEPTH_LIMIT:
        return _plain_items(value, len(value), depth)
    return plain_text(value)


def plain_text(value: object) -> str:
    """``value`` as text that can be encoded, at most 4096 characters of it."""
    return _encodable(
        _to_str(value), lambda text: f"{text[:_TEXT_LIMIT]}… ({len(text) - _TEXT_LIMIT} more)", _TEXT_LIMIT
    )


def plain_trace(value: object) -> str:
    """A traceback; of a long one the end, where the exception stands."""
    return _encodable(_to_str(value), lambda text: f"…{text[-_TRACE_LIMIT:]}", _TRACE_LIMIT)


def one_line(value: object) -> str:
    """``value`` as text for a terminal: control characters, which could forge a line, are written as escapes."""
    return _CONTROL.sub(lambda match: match[0].encode("unicode_escape").decode(), plain_text(value))


def _plain_items(items: Iterable[object], length: int, depth: int) -> list[object]:
    found = [plain(item, depth + 1) for item in islice(items, _ITEM_LIMIT)]
    return found if length <= _ITEM_LIMIT else [*found, f"… {length - _ITEM_LIMIT} more"]


def _encodable(text: str, shorten: Callable[[str], str], limit: int) -> str:
    bounded = text if len(text) <= limit else shorten(text)
    return bounded if bounded.isascii() else bounded.encode("utf-8", "backslashreplace").decode()


def _to_str(value: object) -> str:
    try:
        return str(value)
    except Exception:  # noqa: BLE001 - a value of any class, and the log never raises
        return f"<{type(value).__name__} without text>"


@functools.lru_cache(maxsize=256)
def _camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(other.capitalize() for other in others)


def _field_text(value: object) -> str:
    """A field in a line for people; empty for what says nothing."""
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, (list, tuple, set, frozenset)):
        return " ".join(one_line(item) for item in _plain_items(value, len(value), 0))
    return one_line(plain(value))


def _seconds_text(value: object) -> str:
    """As sentences have it: milliseconds are enough, and of less than one three digits."""
    if not isinstance(value, (int, float)):
        return ""
    return f"{value:.3f}s" if value >= _MILLISECOND else f"{value:.3g}s"


def _last_text(value: object) -> str:
    """Of what a process wrote the end; JSON has more."""
    return _field_text(value[-1:] if isinstance(value, (list, tuple)) else value)


_FIELD_TEXT = {"seconds": _seconds_text, "last_lines": _last_text}


def _is_told(text: str, sentence: str, words: set[str]) -> bool:
    """A number is told by the same number only, a list by all of its items, a sentence as it stands."""
    return words.issuperset(text.split()) or (" " in text and text in sentence)


def _subject_text(sentence: str, fields: Mapping[str, object]) -> str:
    """``GPU-9a1b77c0 (index 3, 0000:47:00.0): `` or the resource or the configuration, unless the sentence names it."""
    if fields.get("device"):
        subject = _SHORT_UUID.sub(r"\1", one_line(fields["device"]))
        facts = [f"index {fields['index']}"] if isinstance(fields.get("index"), int) else []
        facts += [one_line(fields["pci"])] if fields.get("pci") else []
        shown = f"{subject} ({', '.join(facts)})" if facts else subject
    else:
        subject = shown = one_line(fields.get("resource") or fields.get("config") or "")
    return f"{shown}: " if subject and subject not in sentence else ""
