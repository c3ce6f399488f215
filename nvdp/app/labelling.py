"""Builds what writes the labels of the node, and takes them away by order."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import msgspec

from nvdp.app.labels import load_node_traits
from nvdp.config.cluster import LabelTarget
from nvdp.config.process import ProcessOptions
from nvdp.config.schema import Config
from nvdp.errors import ClusterError, ClusterFault, HostError, UsageError
from nvdp.host.feature_file import FeatureFile
from nvdp.host.labels_hold import LabelsHold
from nvdp.log import Log
from nvdp.model.cluster import ObjectSeen
from nvdp.model.traits import Traits
from nvdp.planning.label_catalog import is_catalogued
from nvdp.planning.label_pace import LabelPace
from nvdp.planning.label_wish import LabelWish, build_wish, find_target
from nvdp.planning.labels import build_labels
from nvdp.planning.node_facts import LabelFacts
from nvdp.services.labelling import LabelPlace, LabelService

if TYPE_CHECKING:
    from nvdp.cluster.api import Api
    from nvdp.cluster.node_features import NodeFeatureObject
    from nvdp.cluster.node_labels import NodeLabels


class NodePlaces:
    """The places of one node's labels, each made when it is first written to. ``api`` is asked for then only."""

    def __init__(self, options: ProcessOptions, *, api: Callable[[], Api], namespace: str) -> None:
        self._options = options
        self._api = api
        self._namespace = namespace
        self._files: dict[str, FeatureFile] = {}
        self._feature: NodeFeatureObject | None = None
        self._node: NodeLabels | None = None
        self._seen: ObjectSeen | None = None

    def find(self, wish: LabelWish) -> LabelPlace:
        """The place. ClusterError or HostError, in one line, for one that cannot be."""
        if wish.target is LabelTarget.FILE:
            return self._find_file(wish.file)
        return self._find_node() if wish.target is LabelTarget.NODE else self._find_feature()

    def see(self, seen: ObjectSeen) -> bool:
        """The Node, as it is now. Whether a look at what is written is worth it."""
        self._seen = seen
        told = [place.see(seen) for place in (self._node, self._feature) if place is not None]
        return any(told)

    def _find_file(self, path: str) -> FeatureFile:
        if not path.startswith("/"):
            raise HostError(f'flags.gfd.outputFile: "{path}" is no absolute path: name a file that nvdp may write')
        in_pod = "KUBERNETES_SERVICE_HOST" in os.environ  # the kubelet gives it to every container
        return self._files.setdefault(path, FeatureFile(Path(path), in_pod=in_pod))

    def _find_feature(self) -> NodeFeatureObject:
        from nvdp.cluster.node_features import NodeFeatureObject  # noqa: PLC0415 - not for a file

        if not self._namespace:
            raise ClusterError(
                "labels: nobody says in which namespace the NodeFeature object is to be: set --namespace or NAMESPACE",
                fault=ClusterFault.REFUSED,
            )
        if self._feature is None:
            self._feature = NodeFeatureObject(
                self._api(),
                node_name=self._options.node_name,
                namespace=self._namespace,
                pod_name=self._options.pod_name,
            )
        return self._feature

    def _find_node(self) -> NodeLabels:
        from nvdp.cluster.node_labels import NodeLabels  # noqa: PLC0415 - as above

        if self._node is None:
            node = NodeLabels(self._api(), node_name=self._options.node_name, is_ours=is_catalogued)
            if self._seen is not None:  # whoever watches the Node was quicker, and saves a request
                node.see(self._seen)
            self._node = node
        return self._node


class LabelPlanner:
    """What is to be written for facts whose traits and time are still open; for one thread, as it blocks for the disk.

    Traits are read when the other facts are new, and not at each look: what cannot be read for once changes nothing.
    """

    def __init__(self, options: ProcessOptions) -> None:
        self._options = options
        self._hold = LabelsHold(options.run_dir)
        self._is_cleared = False
        self._facts: LabelFacts | None = None
        self._traits = Traits()
        with contextlib.suppress(HostError):  # whoever made the mark may write there, and so may we
            self._hold.clear()
            self._is_cleared = True

    def __call__(self, facts: LabelFacts) -> LabelWish | None:
        """The wish; None without a configuration in force, or if labels were taken away by command."""
        config = facts.config
        if config is None or (self._is_cleared and self._hold.is_set):
            return None
        if facts != self._facts:
            self._facts, self._traits = facts, load_node_traits(config, self._options, facts.inventory)
        whole = msgspec.structs.replace(facts, traits=self._traits, timestamp=int(time.time()))
        return build_wish(build_labels(whole), config=config, target=self._options.write_labels)


def build_label_service(
    options: ProcessOptions,
    *,
    api: Callable[[], Api],
    namespace: str,
    first_delay_s: float,
    log: Log,
    count: Callable[[str], None],
) -> LabelService[LabelFacts]:
    """The service, for a target other than none. From here on labels that were taken away by command may be written.

    A target that is a file waits for nobody: ``first_delay_s`` is for requests.
    """
    delay_s = first_delay_s if options.write_labels.needs_node else 0.0
    return LabelService(
        LabelPlanner(options),
        NodePlaces(options, api=api, namespace=namespace),
        pace=LabelPace(first_at=time.monotonic() + delay_s, rng=Random()),  # noqa: S311 - spreads requests
        log=log,
        count=count,
        alone=LabelsHold(options.run_dir).alone,
    )


class Removed(msgspec.Struct, frozen=True, kw_only=True):
    """What was taken away, and from where. ``is_held``: a daemon of this node was told not to write it again."""

    place: str
    keys: tuple[str, ...]
    is_held: bool


def remove_labels(options: ProcessOptions, config: Config) -> Removed:
    """Take away what is ours from the place of ``--write-labels``. Blocks for some requests, or the disk; before that
    until a write of the daemon's that is under way has ended.

    Raises UsageError without a place or the name of the node, ClusterError or HostError if it cannot be done.
    """
    target = find_target(options.write_labels, config)
    if target is LabelTarget.NONE:
        raise UsageError("--remove takes --write-labels, which says from where: node-feature, file or node")
    if target.needs_node and not options.node_name:
        raise UsageError("--remove needs --node-name or NODE_NAME, the name of this node in the cluster")
    wish = build_wish({}, config=config, target=target)
    assert wish is not None
    namespace = ""
    if target.needs_node:
        from nvdp.cluster.namespace import find_namespace  # noqa: PLC0415 - not for a file

        namespace = find_namespace(options.namespace)
    with contextlib.ExitStack() as stack:
        place = NodePlaces(
            options, api=lambda: stack.enter_context(contextlib.closing(_build_api(options))), namespace=namespace
        ).find(wish)
        return _remove(place, LabelsHold(options.run_dir))


def _remove(place: LabelPlace, hold: LabelsHold) -> Removed:
    was_held = hold.is_set  # by an order before this one, which stands
    is_held = hold.set()  # before, or the daemon would put them back
    try:
        with hold.alone():  # a write that began before would come after
            return Removed(place=str(place), keys=place.remove(), is_held=is_held)
    except BaseException:  # somebody who does not wait for the end, too
        if not was_held:
            hold.clear()
        raise


def _build_api(options: ProcessOptions) -> Api:
    from nvdp.cluster.api import Api  # noqa: PLC0415 - only where the API server is asked
    from nvdp.cluster.reaching import build_access  # noqa: PLC0415 - as above

    return Api(build_access(options.kubeconfig))
