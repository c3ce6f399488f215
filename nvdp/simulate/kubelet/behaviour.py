"""What differs between kubelet releases, as one table. Source: the kubelet contract, A.1, A.4, A.12, A.15 and B."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Behaviour:
    """One release.

    ``one_client_per_name``: a late end of an older plugin's stream stops the newer plugin of the resource; otherwise
    plugins are told apart by name and socket path, and a second one on the same path is refused.
    ``panics``: an ID that leaves the list during its Allocate, or while a pod holds it and hints are made, is a nil
    dereference. ``register_cancels_dial``: a Register call that is given up aborts the kubelet's dial.
    ``lists_finished_pods``: PodResources may name pods that are over. ``get``: PodResources answers Get.
    ``forgets_restarted``: over its own restart it does not know that a container runs which had been started again.
    """

    one_client_per_name: bool
    panics: bool
    register_cancels_dial: bool
    lists_finished_pods: bool
    get: bool
    forgets_restarted: bool


BEHAVIOURS: Mapping[str, Behaviour] = {
    "1.33": Behaviour(
        one_client_per_name=True,
        panics=False,
        register_cancels_dial=False,
        lists_finished_pods=True,
        get=False,
        forgets_restarted=True,
    ),
    "1.36": Behaviour(
        one_client_per_name=True,
        panics=True,
        register_cancels_dial=True,
        lists_finished_pods=False,
        get=True,
        forgets_restarted=False,
    ),
    "1.37": Behaviour(
        one_client_per_name=False,
        panics=False,
        register_cancels_dial=True,
        lists_finished_pods=False,
        get=True,
        forgets_restarted=False,
    ),
}
