"""To whom an object of ours belongs: when its owners are gone, the cluster removes it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from nvdp.model.cluster import ObjectPath

if TYPE_CHECKING:
    from nvdp.cluster.api import Api


def load_owners(api: Api, *, namespace: str, pod_name: str) -> tuple[dict[str, Any], ...]:
    """The DaemonSet of the pod, and the pod; none without the name of a pod, or if no DaemonSet made it.

    Raises ClusterError if that cannot be found out, also if there is no such pod. Blocks for one request.
    """
    if not pod_name:
        return ()
    pod = api.read(ObjectPath("pods", pod_name, namespace))
    metadata = pod.get("metadata")
    metadata = metadata if isinstance(metadata, Mapping) else {}
    uid = metadata.get("uid")
    for owner in parse_owners(metadata.get("ownerReferences")):
        if owner["kind"] == "DaemonSet" and owner.get("controller") and isinstance(uid, str):
            return owner, {"apiVersion": "v1", "kind": "Pod", "name": pod_name, "uid": uid}
    return ()


def parse_owners(references: object) -> tuple[dict[str, Any], ...]:
    """What owner references say that matters to us. Those that name nobody are left out.

    What they say about blocking a deletion is left out, too: to repeat it takes rights over the owner.
    """
    listed = references if isinstance(references, list) else ()
    return tuple(_parse_owner(one) for one in listed if isinstance(one, Mapping) and _names_somebody(one))


def _names_somebody(reference: Mapping[str, Any]) -> bool:
    return all(isinstance(reference.get(key), str) for key in ("apiVersion", "kind", "name", "uid"))


def _parse_owner(reference: Mapping[str, Any]) -> dict[str, Any]:
    owner = {key: reference[key] for key in ("apiVersion", "kind", "name", "uid")}
    return {**owner, "controller": True} if reference.get("controller") is True else owner
