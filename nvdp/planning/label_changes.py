"""What a write of labels changes: as little as it takes, and nothing that is there already.

What an API server answers is read without trust: whatever has not the form that it should counts as absent.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import msgspec

from nvdp.errors import ClusterError, ClusterFault
from nvdp.planning.label_text import PREFIX

TIMESTAMP: Final = f"{PREFIX}gfd.timestamp"
OWNED: Final = "nvidia.com/nvdp.labels"
"""The annotation of a Node with the labels there that are ours: keys without the domain, sorted, by commas."""

_OWNED_LIMIT: Final = 64 << 10  # characters; a Node's annotations may have 256 KiB in all
_TIMESTAMP_FORM: Final = re.compile(r"[0-9]{1,15}")
_VERSION_FORM: Final = re.compile(r"[0-9]{1,30}")
_SHOWN: Final = 4  # keys that a line of the log names


class LabelWrite(msgspec.Struct, frozen=True, kw_only=True):
    """What a write came to. ``labels`` are there now; ``changed`` are the keys that are new, other or gone.

    ``is_written`` is false if all was there already. With a ``problem`` the labels are as they should be and something
    beside them is not: it is worth another try.
    """

    labels: Mapping[str, str]
    changed: tuple[str, ...] = ()
    is_written: bool = False
    problem: ClusterError | None = None

    def __str__(self) -> str:
        """For people: how many there are, and which changed."""
        number = len(self.labels)
        count = f"{number} label{'' if number == 1 else 's'}"
        return f"{count}; {describe_keys(self.changed)} changed" if self.changed else f"{count}, the same as before"


class NodeSeen(msgspec.Struct, frozen=True, kw_only=True):
    """Of a Node what concerns its labels. ``owned`` are the keys that we wrote, by the annotation."""

    labels: Mapping[str, str]
    owned: frozenset[str]
    annotation: str | None = None
    version: str = ""

    def is_older_than(self, other: NodeSeen) -> bool:
        """False also where that cannot be told. Versions of one object grow, and are decimal numbers."""
        versions = (self.version, other.version)
        return all(map(_VERSION_FORM.fullmatch, versions)) and int(versions[0]) < int(versions[1])


def describe_keys(keys: tuple[str, ...]) -> str:
    """The first of them, and how many more there are."""
    more = len(keys) - _SHOWN
    return ", ".join(keys[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


def find_changes(before: Mapping[str, str], after: Mapping[str, str]) -> tuple[str, ...]:
    """The keys that are in one of them only or have another value, sorted."""
    return tuple(sorted(key for key in {*before, *after} if before.get(key) != after.get(key)))


def keep_timestamp(wanted: Mapping[str, str], there: Mapping[str, str]) -> dict[str, str]:
    """``wanted``, with the timestamp that is there if nothing else differs: it tells when the labels last changed.

    So a restart finds nothing to write.
    """
    time = there.get(TIMESTAMP, "")
    is_same = not set(find_changes(wanted, there)) - {TIMESTAMP}
    if TIMESTAMP in wanted and is_same and _TIMESTAMP_FORM.fullmatch(time):
        return {**wanted, TIMESTAMP: time}
    return dict(wanted)


def read_texts(whole: object, *path: str) -> dict[str, str]:
    """The mapping of texts at that place of an object; without what is no text, and empty if there is none."""
    for name in path:
        whole = whole.get(name) if isinstance(whole, Mapping) else None
    items: Iterable[tuple[Any, Any]] = whole.items() if isinstance(whole, Mapping) else ()
    return {key: value for key, value in items if isinstance(key, str) and isinstance(value, str)}


def check_answer(place: object, labels: Mapping[str, str], answer: Mapping[str, Any], *path: str) -> None:
    """Raise ClusterError if the answer to a write of ``labels`` is no object that has them at ``path``."""
    if not read_texts(answer, "metadata").get("resourceVersion"):
        raise ClusterError(
            f"{place}: the API server answered a write by something that is no object", fault=ClusterFault.UNREACHABLE
        )
    there = read_texts(answer, *path)
    lost = tuple(key for key in sorted(labels) if there.get(key) != labels[key])
    if lost:
        raise ClusterError(
            f"{place}: took the labels and does not have them ({describe_keys(lost)}): another writer, or an admission"
            " webhook",
            fault=ClusterFault.REFUSED,
        )


def parse_node(node: Mapping[str, Any]) -> NodeSeen:
    """A Node as the API server gives it."""
    annotation = read_texts(node, "metadata", "annotations").get(OWNED)
    return NodeSeen(
        labels=read_texts(node, "metadata", "labels"),
        owned=_parse_owned(annotation or ""),
        annotation=annotation,
        version=read_texts(node, "metadata").get("resourceVersion", ""),
    )


def find_owned(node: NodeSeen, *, is_ours: Callable[[str], bool]) -> dict[str, str]:
    """The labels of the Node that we wrote and may take away."""
    return {key: value for key, value in sorted(node.labels.items()) if key in node.owned and is_ours(key)}


def plan_node(
    node: NodeSeen, labels: Mapping[str, str], *, is_ours: Callable[[str], bool]
) -> tuple[dict[str, Any], LabelWrite]:
    """The merge patch that brings the Node to ``labels``, empty if it has them, and what it comes to.

    Only keys of our catalogue (``is_ours``) are written or taken away: no annotation, however it came about, makes us
    touch another's label. A label of the catalogue that somebody else wrote becomes ours. The patch names no version:
    it changes nothing but what it names, and a Node changes all the time.
    """
    known = {key: value for key, value in node.labels.items() if is_ours(key) and (key in node.owned or key in labels)}
    wanted = keep_timestamp({key: value for key, value in labels.items() if is_ours(key)}, known)
    changed = find_changes(known, wanted)
    annotation = _build_owned(wanted)
    metadata: dict[str, Any] = {}
    if changed:
        metadata["labels"] = {key: wanted.get(key) for key in changed}
    if annotation != node.annotation:
        metadata["annotations"] = {OWNED: annotation}
    patch = {"metadata": metadata} if metadata else {}
    return patch, LabelWrite(labels=wanted, changed=changed, is_written=bool(patch))


def build_node_removal(node: NodeSeen, *, is_ours: Callable[[str], bool]) -> dict[str, Any]:
    """The merge patch that takes away what is ours; empty if nothing is."""
    metadata: dict[str, Any] = {}
    if owned := find_owned(node, is_ours=is_ours):
        metadata["labels"] = dict.fromkeys(owned)
    if node.annotation is not None:
        metadata["annotations"] = {OWNED: None}
    return {"metadata": metadata} if metadata else {}


def _parse_owned(text: str) -> frozenset[str]:
    """The keys; none of a text that is longer than any of ours."""
    return frozenset(PREFIX + name for name in text.split(",") if name) if len(text) <= _OWNED_LIMIT else frozenset()


def _build_owned(keys: Iterable[str]) -> str:
    return ",".join(sorted(key.removeprefix(PREFIX) for key in keys))
