"""The test server itself: what it must have in common with a real one for the other tests to mean anything."""

from __future__ import annotations

import pytest
import yaml

from nvdp.cluster.access import ServiceAccountAccess
from nvdp.cluster.api import Api
from nvdp.cluster.reaching import build_access
from nvdp.errors import ClusterError, ClusterFault
from nvdp.model.cluster import ObjectPath, build_config_map_path, build_node_path
from tests.cluster.server import TOKEN, USER, ApiServer, Roles
from tests.cluster.server.patches import STEPS, STRATEGIC, PatchError, patch

NODE = build_node_path("gpu-a3")
STATUS = build_node_path("gpu-a3", subresource="status")
FEATURE = ObjectPath("nodefeatures", "ours", "nvdp", group="nfd.k8s-sigs.io", version="v1alpha1")
ROLES = """
kind: ClusterRole
metadata: {name: nvdp}
rules:
- {apiGroups: [""], resources: [nodes], verbs: [get, watch]}
- {apiGroups: [""], resources: [nodes/status], verbs: [patch]}
---
kind: ClusterRoleBinding
metadata: {name: nvdp}
roleRef: {kind: ClusterRole, name: nvdp}
subjects: [{kind: ServiceAccount, namespace: nvdp, name: nvdp}]
---
kind: Role
metadata: {name: nvdp, namespace: nvdp}
rules:
- {apiGroups: [""], resources: [configmaps], resourceNames: [configs], verbs: [get, watch]}
- {apiGroups: [nfd.k8s-sigs.io], resources: [nodefeatures], resourceNames: [ours], verbs: [create, delete]}
---
kind: RoleBinding
metadata: {name: nvdp, namespace: nvdp}
roleRef: {kind: Role, name: nvdp}
subjects: [{kind: ServiceAccount, name: nvdp}]
"""


@pytest.fixture
def strict(server: ApiServer) -> ApiServer:
    server.roles = Roles(yaml.safe_load_all(ROLES))
    return server


def is_allowed(call) -> bool:
    try:
        call()
    except ClusterError as error:
        return error.fault is not ClusterFault.DENIED
    return True


def test_roles_allow_what_they_name_and_nothing_else(strict, api) -> None:
    assert is_allowed(lambda: api.read(NODE))
    assert is_allowed(lambda: api.patch(STATUS, {"status": {"phase": "x"}}))
    assert not is_allowed(lambda: api.patch(NODE, {"metadata": {"labels": {"a": "b"}}}))
    assert not is_allowed(lambda: api.delete(NODE))


def test_a_name_in_a_role_is_obeyed_by_a_watch_of_one_object(strict, api) -> None:
    assert is_allowed(lambda: api.watch(build_config_map_path("nvdp", "configs")).__exit__())
    assert not is_allowed(lambda: api.watch(build_config_map_path("nvdp", "others")))
    assert not is_allowed(lambda: api.watch(build_config_map_path("default", "configs")))


def test_a_name_in_a_role_does_not_allow_a_create(strict, api) -> None:
    assert not is_allowed(lambda: api.create(FEATURE, {"metadata": {"name": "ours"}}))
    assert is_allowed(lambda: api.delete(FEATURE))


def test_who_is_somebody_else_has_other_rights(strict, api) -> None:
    strict.tokens = {TOKEN: "system:serviceaccount:default:nvdp"}
    assert not is_allowed(lambda: api.read(NODE))
    strict.tokens = {TOKEN: USER}
    assert is_allowed(lambda: api.read(NODE))


def test_the_status_is_written_by_its_own_path_only(server, api) -> None:
    api.patch(NODE, {"status": {"phase": "x"}})
    assert "status" not in server.store.find("nodes", "gpu-a3")
    api.patch(STATUS, {"status": {"phase": "y"}, "spec": {"unschedulable": True}})
    found = server.store.find("nodes", "gpu-a3")
    assert found["status"] == {"phase": "y"}
    assert "spec" not in found


def test_a_write_without_a_change_makes_no_version(server, api) -> None:
    before = server.store.version
    api.patch(NODE, {"metadata": {"labels": {"zone": "b"}}})
    assert server.store.version == before


@pytest.mark.parametrize("value", ["a" * 64, "a b", "-a", "a_"])
def test_a_label_that_is_none_is_refused(api, value: str) -> None:
    with pytest.raises(ClusterError, match="Invalid value") as caught:
        api.patch(NODE, {"metadata": {"labels": {"x": value}}})
    assert caught.value.fault is ClusterFault.REFUSED


def test_a_write_may_be_refused_by_a_fence(server, api) -> None:
    server.admit = lambda admission: f"{admission.user} is not {admission.new['metadata']['name']}"
    with pytest.raises(ClusterError, match="is not gpu-a3"):
        api.patch(NODE, {"metadata": {"labels": {"a": "b"}}})


def test_a_kind_that_is_not_installed_is_missing(server, api) -> None:
    del server.store.kinds["nfd.k8s-sigs.io", "v1alpha1", "nodefeatures"]
    with pytest.raises(ClusterError) as caught:
        api.create(FEATURE, {"metadata": {"name": "ours"}})
    assert caught.value.fault is ClusterFault.MISSING


def test_steps_that_do_not_fit_change_nothing(server, api) -> None:
    server.store.edit("nodes", "gpu-a3", lambda node: node.update(spec={"taints": [{"key": "a"}]}))
    steps = [{"op": "test", "path": "/spec/taints/0/key", "value": "b"}, {"op": "remove", "path": "/spec/taints/0"}]
    with pytest.raises(ClusterError, match="testing value") as caught:
        api.patch(NODE, steps)
    assert caught.value.fault is ClusterFault.REFUSED
    api.patch(NODE, [{**steps[0], "value": "a"}, steps[1]])
    assert server.store.find("nodes", "gpu-a3")["spec"] == {"taints": []}


@pytest.mark.parametrize(
    ("kind", "found", "body", "then"),
    [
        (STEPS, {"a": [1]}, [{"op": "add", "path": "/a/-", "value": 2}], {"a": [1, 2]}),
        (STEPS, {"a/b": {"~": 1}}, [{"op": "replace", "path": "/a~1b/~0", "value": 2}], {"a/b": {"~": 2}}),
        (
            STRATEGIC,
            {"conditions": [{"type": "a", "status": "True", "x": 1}, {"type": "b"}]},
            {"conditions": [{"type": "a", "status": "False"}, {"type": "c"}, {"type": "b", "$patch": "delete"}]},
            {"conditions": [{"type": "a", "status": "False", "x": 1}, {"type": "c"}]},
        ),
    ],
)
def test_patches_are_those_of_the_standards(kind, found, body, then) -> None:
    assert patch(kind, found, body) == then


def test_a_step_without_its_place_is_refused() -> None:
    with pytest.raises(PatchError):
        patch(STEPS, {}, [{"op": "remove", "path": "/a"}])


def test_it_comes_back_on_the_same_port_with_what_it_had(server, access) -> None:
    port = server.port
    server.stop()
    server.start()
    assert server.port == port
    api = Api(access)
    assert api.read(NODE)["metadata"]["name"] == "gpu-a3"
    api.close()


def test_a_server_without_tls_is_for_those_who_ask_for_it(tmp_path) -> None:
    with ApiServer(tls=False) as plain:
        plain.store.put("nodes", {"metadata": {"name": "gpu-a3"}})
        api = Api(build_access(plain.write_kubeconfig(tmp_path / "config", cluster={"server": plain.url})))
        assert api.read(NODE)["metadata"]["name"] == "gpu-a3"
        api.close()
        directory = plain.write_service_account(tmp_path / "account")
        with pytest.raises(ClusterError, match="TLS fails"):
            Api(ServiceAccountAccess(directory, environ=plain.environ)).read(NODE)
