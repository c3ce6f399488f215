"""What is to be written about the node, where, and how often it is looked at there."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from nvdp.config.cluster import LabelTarget
from nvdp.config.schema import Config


class LabelWish(msgspec.Struct, frozen=True, kw_only=True):
    """Labels and their place. ``target`` is neither NONE nor AUTO; ``file`` is the path of the target FILE.

    ``look_s`` is the time between two looks at a file, infinite if it is not looked at. With ``is_once`` they are
    written once in the life of the process.
    """

    labels: Mapping[str, str]
    target: LabelTarget
    file: str = ""
    is_once: bool = False
    look_s: float = float("inf")


def find_target(target: LabelTarget, config: Config) -> LabelTarget:
    """Where labels go: what was chosen, or what the configuration says where that was left to it."""
    if target is not LabelTarget.AUTO:
        return target
    return LabelTarget.NODE_FEATURE if config.flags.use_node_feature_api else LabelTarget.FILE


def build_wish(labels: Mapping[str, str], *, config: Config, target: LabelTarget) -> LabelWish | None:
    """The wish; None if nothing is to be written anywhere."""
    found = find_target(target, config)
    gfd = config.flags.gfd
    if found is LabelTarget.NONE:
        return None
    if found is not LabelTarget.FILE:
        return LabelWish(labels=labels, target=found, is_once=gfd.oneshot)
    look_s = max(1.0, gfd.sleep_interval.seconds)
    return LabelWish(labels=labels, target=found, file=gfd.output_file, is_once=gfd.oneshot, look_s=look_s)
