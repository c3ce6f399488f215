"""What follows from what is seen of the node's label and of the configurations: one, a refusal, or to wait.

An API server that does not answer is waited for, so that a labelled node does not start with the default because the
server is slow. What counts then is what was applied on this node last, and only where nothing ever was the default.
"""

from __future__ import annotations

import enum

import msgspec

from nvdp.model.chosen import Chosen
from nvdp.planning.selection import Rules, choose

_UNANSWERED = "the API server has not answered yet"
_ONCE_KNOWN = "nvdp goes on by itself once it is"


class Source(msgspec.Struct, frozen=True):
    """A ConfigMap or a directory: the names of what is in it. ``problem``, a full sentence, says why it has none.

    ``missing``: that is because it is not there.
    """

    place: str
    names: frozenset[str] = frozenset()
    problem: str = ""
    missing: bool = False


class Sight(msgspec.Struct, frozen=True, kw_only=True):
    """What is seen now. ``label`` is the label's value, empty without one and None while it is not known.

    ``config_map`` and ``directory`` are None while they are not known, and for good where there is none to be looked
    at: then their ``place`` is empty. The problems say why the API server does not tell, empty where it has not tried.
    ``is_late``: it was waited for long enough. ``keeps_one``: there is one that was applied on this node last.
    ``has_news``: the label or the directory has changed since it was first seen.
    """

    node: str
    label: str | None = None
    node_problem: str = ""
    config_map_place: str = ""
    config_map: Source | None = None
    config_map_problem: str = ""
    directory_place: str = ""
    directory: Source | None = None
    is_late: bool = False
    keeps_one: bool = False
    has_news: bool = False


class Kind(enum.Enum):
    """CHOSEN apart, what was in force before stays. WAITING is no fault of anybody's configuration."""

    CHOSEN = "chosen"
    UNKNOWN = "unknown"
    MISSING = "missing"
    REFUSED = "refused"
    WAITING = "waiting"


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """``place`` is where the configurations are that it is about; ``problem`` a full sentence where none is chosen."""

    kind: Kind
    place: str = ""
    chosen: Chosen | None = None
    problem: str = ""


def decide(sight: Sight, rules: Rules) -> Verdict | None:
    """The verdict on what is seen; None while the API server is given time to answer."""
    source = _find_source(sight)
    if source is not None and source.problem and (sight.label is not None or source.missing or sight.is_late):
        kind = Kind.MISSING if source.missing else Kind.REFUSED
        return Verdict(kind=kind, place=source.place, problem=source.problem)
    if source is not None and sight.label is not None:
        return _choose(sight.label, source, rules)
    if not sight.is_late:
        return None
    if source is not None and source is sight.directory and not sight.keeps_one:
        default = _choose(None, source, rules)
        if default.kind is Kind.CHOSEN:
            return default
    return Verdict(kind=Kind.WAITING, problem=_explain_waiting(sight, rules))


def _find_source(sight: Sight) -> Source | None:
    """The configurations that count: those of the ConfigMap once it was seen; the directory's until then.

    Where there is a ConfigMap, the directory stands in for it only once the API server had its time: the kubelet brings
    an edit a minute later than the API server, and one request that fails is no reason to go back behind what was
    applied last. That is at least as new as the directory, unless something has changed since.
    """
    if sight.config_map is not None:
        return sight.config_map
    if not sight.config_map_place:
        return sight.directory
    is_behind = sight.keeps_one and not sight.has_news
    return sight.directory if sight.is_late and not is_behind else None


def _choose(label: str | None, source: Source, rules: Rules) -> Verdict:
    choice = choose(label, source.names, rules)
    if choice.chosen is not None:
        return Verdict(kind=Kind.CHOSEN, place=source.place, chosen=choice.chosen)
    return Verdict(kind=Kind.UNKNOWN, place=source.place, problem=f"{source.place}: {choice.problem}")


def _explain_waiting(sight: Sight, rules: Rules) -> str:
    if sight.label is None:
        what, why = f"{sight.node}: its label {rules.label_key}", sight.node_problem
    elif sight.config_map_place:
        what, why = sight.config_map_place, sight.config_map_problem
    else:
        return f"{sight.directory_place}: not looked at yet"
    return f"{what} is not known yet ({why or _UNANSWERED}); {_ONCE_KNOWN}"
