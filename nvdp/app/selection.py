"""Builds what follows the node's label and the configurations that it chooses from, as the options say."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from nvdp.config.overrides import Overrides
from nvdp.config.process import ProcessOptions
from nvdp.model.cluster import ObjectPath, build_config_map_path, build_node_path
from nvdp.planning.selection import Rules
from nvdp.services.events import ConfigRead
from nvdp.services.selection import SelectionService

FIRST_ANSWER_S: Final = 10.0
"""How long the API server is given from the first request on, before the first decision is made without it."""


def find_config_map(options: ProcessOptions, *, namespace: str) -> ObjectPath | None:
    """The ConfigMap that is to be watched; ``namespace`` is that of a name without one. None if there is none."""
    if not options.config_map:
        return None
    before, _, name = options.config_map.rpartition("/")
    return build_config_map_path(before or namespace, name)


def build_selection(
    options: ProcessOptions,
    overrides: Overrides,
    *,
    post: Callable[[ConfigRead], None],
    namespace: str,
    first_delay_s: float,
    keeps_one: bool,
) -> SelectionService:
    """The service, where the options are ``is_by_label``; start it, and show it the Node and the ConfigMap.

    ``first_delay_s`` is how long the first request to the API server waits from now on, ``keeps_one`` whether there is
    a configuration that was applied on this node last.
    """
    return SelectionService(
        post,
        rules=Rules(
            label_key=options.node_label, default=options.default_config, fallbacks=options.fallback_strategies
        ),
        overrides=overrides,
        node=build_node_path(options.node_name),
        config_map=find_config_map(options, namespace=namespace),
        directory=options.config_dir,
        keeps_one=keeps_one,
        decide_at=time.monotonic() + first_delay_s + FIRST_ANSWER_S,
    )
