"""Single values of a file, read as written: no base-60, no octal, no text that turns into a boolean unseen.

One reader for each type. A reader raises FormatError with what to say after the path; ``note`` takes what is accepted
but doubtful.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable
from typing import Any, Final, TypeAlias, TypeVar

from nvdp.config.keys import Setting
from nvdp.config.nodes import Scalar
from nvdp.errors import FormatError, quote
from nvdp.model.deviceref import DeviceRef, parse_device_ref
from nvdp.model.duration import Duration, parse_duration
from nvdp.model.names import Pattern, ResourceName, parse_resource_name
from nvdp.model.quantity import Quantity, parse_quantity

Note: TypeAlias = Callable[[str], None]
_Ordered = TypeVar("_Ordered", int, Quantity)
Reader: TypeAlias = Callable[[Scalar, Setting, Note], Any]

_BOOLEANS: Final = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_SWITCHES: Final = {  # booleans of YAML 1.1
    spelling: value
    for word, value in (("yes", True), ("on", True), ("no", False), ("off", False))
    for spelling in (word, word.capitalize(), word.upper())
}
_DIGITS: Final = 18  # what surely fits where numbers go
_DECIMAL: Final = re.compile(r"[-+]?(?:0|[1-9][0-9]{0,17})")
_FLOAT: Final = re.compile(r"[-+]?(?:[0-9]{1,18}\.?[0-9]{0,18}|\.[0-9]{1,18})(?:[eE][-+]?[0-9]{1,2})?")
_OTHER_BASES: Final = (  # numbers of YAML 1.1 that people do not expect: what they are called, their form, their base
    ("an octal number", re.compile(r"0[0-7]{1,18}"), 8),
    ("an octal number", re.compile(r"0o[0-7]{1,18}"), 0),
    ("a hexadecimal number", re.compile(r"0x[0-9a-fA-F]{1,15}"), 0),
    ("a binary number", re.compile(r"0b[01]{1,60}"), 0),
)
_BASE_60: Final = re.compile(r"[-+]?[1-9][0-9]*(?::[0-5]?[0-9])+|[-+]?[0-9]+(?::[0-5]?[0-9])+\.[0-9]*")


def read_bool(scalar: Scalar, _setting: Setting, note: Note) -> bool:
    value = _BOOLEANS.get(scalar.text, _SWITCHES.get(scalar.text))
    if value is None:
        raise FormatError(
            f"{scalar.text if _DECIMAL.fullmatch(scalar.text) else quote(scalar.text)} is not true or false"
        )
    spelled = str(value).lower()
    if scalar.quoted:
        raise FormatError(f"{quote(scalar.text)} is text; write {spelled}")
    if scalar.text in _SWITCHES:
        note(f"{scalar.text} is read as {spelled}; write {spelled}")
    return value


def read_int(scalar: Scalar, setting: Setting, _note: Note) -> int:
    text = scalar.text
    if _DECIMAL.fullmatch(text):
        if scalar.quoted:
            raise FormatError(f"{quote(text)} is text; write {text}")
        return check_range(int(text), setting, text)
    if not scalar.quoted:
        for kind, form, base in _OTHER_BASES:
            if form.fullmatch(text):
                raise FormatError(f"{text} reads as {kind} in YAML; write {int(text, base)}")
        if _FLOAT.fullmatch(text) and not text.isdigit():
            raise FormatError(_explain_fraction(text, setting))
        if len(text) > _DIGITS and text.isdigit():
            raise FormatError(f"{text[:_DIGITS]}… is too large")
    digits = re.search(r"[0-9]{1,18}", text.replace("_", ""))
    raise FormatError(f"{quote(text)} is not a number" + (f"; write {int(digits[0])}" if digits else ""))


def read_text(scalar: Scalar, setting: Setting, _note: Note) -> str:
    return check_form(scalar.text, setting)


def read_duration(scalar: Scalar, setting: Setting, _note: Note) -> Duration:
    check_not_rewritten(scalar)
    duration = parse_duration(scalar.text)
    if duration.is_infinite and not setting.infinite:
        raise FormatError("infinite is not possible here; write a duration like 10s or 5m")
    if setting.most is not None and duration > setting.most:
        raise FormatError(f"{scalar.text} is too long; {setting.too_large}{setting.most} is the most")
    if setting.least is not None and duration < setting.least:
        raise FormatError(f"{scalar.text} is too short; {setting.too_small}{setting.least} is the least")
    return duration


def read_quantity(scalar: Scalar, setting: Setting, _note: Note) -> Quantity:
    check_not_rewritten(scalar)
    return check_range(parse_quantity(scalar.text), setting, scalar.text)


def read_resource_name(scalar: Scalar, _setting: Setting, _note: Note) -> ResourceName:
    return parse_resource_name(scalar.text)


def read_pattern(scalar: Scalar, _setting: Setting, _note: Note) -> Pattern:
    if not scalar.text:
        raise FormatError('an empty pattern matches nothing; "*" matches everything')
    return Pattern(scalar.text)


def read_device_ref(scalar: Scalar, _setting: Setting, _note: Note) -> DeviceRef:
    check_not_rewritten(scalar)
    return parse_device_ref(scalar.text)


def read_enum(scalar: Scalar, setting: Setting, _note: Note, *, choices: type[enum.Enum]) -> enum.Enum:
    for value, reason in setting.refused:
        if scalar.text == value:
            raise FormatError(f"{value} {reason}")
    known = list_choices(choices, setting)
    if scalar.text in known:
        return choices(scalar.text)
    said = f"not one of {', '.join(known)}" if len(known) > 1 else f"not known; {known[0]} is"
    words = [word.strip() for word in scalar.text.split(",")]
    # Flags and variables take several words in one, and files are written after them.
    remedy = f"; write [{', '.join(words)}]" if setting.single and set(words).issubset(known) else ""
    raise FormatError(f"{quote(scalar.text)} is {said}{remedy}")


READERS: Final[dict[Any, Reader]] = {
    bool: read_bool,
    int: read_int,
    str: read_text,
    Duration: read_duration,
    Quantity: read_quantity,
    ResourceName: read_resource_name,
    Pattern: read_pattern,
    DeviceRef: read_device_ref,
}


def list_choices(choices: type[enum.Enum], setting: Setting) -> list[str]:
    """The words that a key of this type takes."""
    refused = {value for value, _ in setting.refused}
    return [choice.value for choice in choices if choice.value not in refused]


def check_form(text: str, setting: Setting) -> str:
    """``text`` if it has the key's form, else FormatError."""
    if setting.form and not re.fullmatch(setting.form, text):
        raise FormatError(f"{quote(text)} is not {setting.form_text}")
    return text


def check_not_rewritten(scalar: Scalar) -> None:
    """FormatError if other readers of YAML would make another number of this text."""
    if scalar.quoted:
        return
    if _BASE_60.fullmatch(scalar.text):
        raise FormatError(f'{scalar.text} reads as a base-60 number in YAML; quote it: "{scalar.text}"')
    for kind, form, _ in _OTHER_BASES:
        if form.fullmatch(scalar.text):
            raise FormatError(f'{scalar.text} reads as {kind} in YAML; quote it: "{scalar.text}"')


def check_range(value: _Ordered, setting: Setting, written: str) -> _Ordered:
    """``value`` if it is in the key's range, else FormatError."""
    meant = f"percent from {setting.least} to {setting.most} is meant" if setting.percent else ""
    if setting.least is not None and value < setting.least:
        raise FormatError(f"{written} is too small; {meant or setting.too_small or f'{setting.least} is the least'}")
    if setting.most is not None and value > setting.most:
        raise FormatError(f"{written} is too large; {meant or setting.too_large or f'{setting.most} is the most'}")
    return value


def _explain_fraction(text: str, setting: Setting) -> str:
    if not setting.percent:
        return f"{text} is not a whole number"
    hint = f", {float(text) * 100:.0f}?" if 0 < float(text) <= 1 else ""
    return f"{text} is not a whole number; percent from {setting.least} to {setting.most} is meant{hint}"


def looks_like_number(text: str) -> bool:
    """Whether an unquoted ``text`` is meant as a number, if not always as one that is accepted."""
    return bool(_FLOAT.fullmatch(text))
