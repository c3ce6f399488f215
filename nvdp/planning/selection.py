"""Which of several configurations a node has: the one that its label names, else the default, else a fallback.

The rules are those of the config manager beside NVIDIA's plugin (section 8 of its contract). What differs is what
becomes of a choice that cannot be made: it is a sentence, and never an exit.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from typing import Final

import msgspec

from nvdp.config.cluster import NODE_LABEL, Fallback
from nvdp.errors import quote
from nvdp.model.chosen import Chosen

DEFAULT_ENTRY: Final = "default"
"""What an entry is called that the fallback ``named`` takes."""
_HIDDEN: Final = ".."  # the kubelet's own links and directories in a mounted ConfigMap
_MOST_NAMED: Final = 20
_LONGEST_COMPARED: Final = 63  # as long as the value of a label
_WORD: Final = re.compile(r"[A-Za-z0-9][-A-Za-z0-9_.]{0,62}")


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """What the options say: the label's key, the default's name (empty: none), and the fallbacks in their order."""

    label_key: str = NODE_LABEL
    default: str = ""
    fallbacks: tuple[Fallback, ...] = ()


class Choice(msgspec.Struct, frozen=True):
    """Either what was chosen, or a ``problem``: a sentence that names what there is."""

    chosen: Chosen | None = None
    problem: str = ""


def is_entry(name: str) -> bool:
    """Whether a file, or a key of a ConfigMap, can be a configuration by its name."""
    return bool(name) and not name.startswith(_HIDDEN)


def choose(label: str | None, names: Collection[str], rules: Rules) -> Choice:
    """Choose among ``names``. ``label`` is the value of the node's label, empty without one, None if it is not known.

    A label, and a default, must name something that there is: nothing else takes its place. Where there are no
    configurations at all nothing can be chosen, not even ``empty``: a ConfigMap that was emptied by accident must not
    take away what is shared.
    """
    there = sorted(filter(is_entry, names))
    if not there:
        return Choice(problem="there are no configurations in it")
    if label:
        by = f"label {rules.label_key}={show_name(label)}"
        if label in there:
            return Choice(Chosen(label, by))
        return Choice(problem=f"{by} names no configuration{_suggest(label, there)}; there are {_join(there)}")
    why = f"label {rules.label_key} not known yet" if label is None else f"no label {rules.label_key}"
    return _choose_default(there, rules, why=why) if rules.default else _choose_fallback(there, rules, why=why)


def show_name(name: str) -> str:
    """A name as it is where it is a short word, else in quotes."""
    return name if _WORD.fullmatch(name) else quote(name)


def _choose_default(there: list[str], rules: Rules, *, why: str) -> Choice:
    if rules.default in there:
        return Choice(Chosen(rules.default, f"{why}: --default-config"))
    text = f"--default-config {show_name(rules.default)} names no configuration{_suggest(rules.default, there)}"
    return Choice(problem=f"{text}; there are {_join(there)} ({why})")


def _choose_fallback(there: list[str], rules: Rules, *, why: str) -> Choice:
    for fallback in rules.fallbacks:
        entry = _FALLBACKS[fallback](there)
        if entry is not None:
            return Choice(Chosen(entry, f"{why}: fallback {fallback.value}"))
    tried = ", ".join(fallback.value for fallback in rules.fallbacks)
    rest = f"no fallback fits ({tried})" if tried else "no --fallback-strategies"
    return Choice(problem=f"{why}, no --default-config and {rest}; there are {_join(there)}")


_FALLBACKS: Final[dict[Fallback, Callable[[list[str]], str | None]]] = {
    Fallback.NAMED: lambda there: DEFAULT_ENTRY if DEFAULT_ENTRY in there else None,
    Fallback.SINGLE: lambda there: there[0] if len(there) == 1 else None,
    Fallback.EMPTY: lambda _there: "",
}


def _suggest(name: str, there: list[str]) -> str:
    from difflib import get_close_matches  # noqa: PLC0415 - only a wrong name pays for it

    near = get_close_matches(name[:_LONGEST_COMPARED], there[:_MOST_NAMED], n=1)
    return f", did you mean {show_name(near[0])}?" if near else ""


def _join(there: list[str]) -> str:
    rest = len(there) - _MOST_NAMED
    return ", ".join(map(show_name, there[:_MOST_NAMED])) + (f" and {rest} more" if rest > 0 else "")
