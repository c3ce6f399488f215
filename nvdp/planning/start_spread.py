"""When a node asks the API server for the first time, and writes for the first time: not all nodes at once.

The budget: 5,000 nodes that start together, each with all features, stay below 400 requests a second, and each knows
its configuration within a minute. A node does not know of the others, but it knows how many requests it has to make:
for each kind it waits by chance for as long as the whole fleet needs for that kind. First what configures it and says
that its GPUs are there, then labels, then events. The simulation of a fleet in the tests runs this very code. Pure.
"""

from __future__ import annotations

from random import Random
from typing import Final

import msgspec

from nvdp.config.cluster import ClusterOptions, LabelTarget

FLEET: Final = 5000
_REQUESTS_EACH_S: Final = 350.0  # of 400; the rest is for chance, and for what nobody foresees
_EACH_S: Final = FLEET / _REQUESTS_EACH_S  # for one request of every node
_NEW_BOOT_S: Final = 600.0
_ALONE_S: Final = 1.0
_ALONE_WRITES_S: Final = 30.0
_ADVERTISED_S: Final = 5.0  # from the configuration to devices that are on offer; sooner there is nothing to tell
_SHOWN_S: Final = 12.0  # from the configuration to a Node that shows them, which the kubelet does every ten seconds
_FEATURE_REQUESTS: Final = 3  # of the object, of the pod, and the write
_EVENTS: Final = 3  # the driver, the configuration, the taint


class StartDelays(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds from the start of the process to the first request of each kind: watches, condition and taint, labels,
    events.
    """

    ask_s: float
    state_s: float
    labels_s: float
    events_s: float


def starts_with_others(*, boot_age_s: float | None, has_applied: bool) -> bool:
    """Whether many nodes may be starting now: this one has booted a moment ago, or nvdp is new on it.

    Where neither is so, a pod was replaced or a container restarted, and the cluster itself does that a few at a time.
    ``boot_age_s`` is None where it is not known; ``has_applied`` if a configuration was ever in force here.
    """
    return not has_applied or (boot_age_s is not None and boot_age_s < _NEW_BOOT_S)


def plan_start(options: ClusterOptions, *, with_others: bool, rng: Random) -> StartDelays:
    """The delays of this process, by chance."""
    if not with_others:
        writes_s = rng.uniform(0.0, _ALONE_WRITES_S)
        return StartDelays(ask_s=rng.uniform(0.0, _ALONE_S), state_s=0.0, labels_s=writes_s, events_s=writes_s)
    watches = 1 + bool(options.config_map)
    states = bool(options.node_condition) + bool(options.startup_taint)
    asked_s = (watches + states) * _EACH_S
    labels_from_s = asked_s + _SHOWN_S
    events_from_s = labels_from_s + _count_label_requests(options.write_labels) * _EACH_S
    ask_s = rng.uniform(0.0, asked_s)
    return StartDelays(
        ask_s=ask_s,
        state_s=ask_s + _ADVERTISED_S,
        labels_s=rng.uniform(labels_from_s, events_from_s),
        events_s=rng.uniform(events_from_s, events_from_s + _EVENTS * _EACH_S),
    )


def _count_label_requests(target: LabelTarget) -> int:
    if target in {LabelTarget.NONE, LabelTarget.FILE}:
        return 0
    return 1 if target is LabelTarget.NODE else _FEATURE_REQUESTS
