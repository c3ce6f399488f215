"""The manifests of MPS: two DaemonSets that share directories and no pod, of which one has power over the node."""

from __future__ import annotations

import ast
import re
import shutil
from pathlib import Path

import kubernetes_validate
import kustomize
import pytest

import nvdp
from nvdp.app.mps import METRICS_PORT
from nvdp.config.load import parse_config
from nvdp.config.options import list_options, parse_options
from nvdp.model.mps import CLIENT_DIR, DEFAULT_ROOT
from nvdp.model.names import GPU_RESOURCE
from nvdp.mps.control import COMMAND_LIMIT_S
from nvdp.services.mps_running import Times

ROOT = Path(__file__).resolve().parents[2]
MANIFESTS = ROOT / "manifests"
COMPONENT = MANIFESTS / "components/mps"
MODES = {
    "base": MANIFESTS / "base",
    "privileged": MANIFESTS / "overlays/privileged",
    "cdi": MANIFESTS / "overlays/cdi",
}
WORDS_TO_RUNTIMES = {"NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES"}
KUBERNETES = ("1.28", kubernetes_validate.latest_version())


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def objects(mode: str) -> list:
    return kustomize.apply(COMPONENT, kustomize.build(MODES[mode]))


def daemon_sets(objects: list) -> dict[str, dict]:
    return {found["metadata"]["name"]: found for found in objects if found["kind"] == "DaemonSet"}


def pod_of(objects: list, name: str) -> dict:
    return kustomize.pod_spec(daemon_sets(objects)[name])


def container_of(objects: list, name: str) -> dict:
    (found,) = pod_of(objects, name)["containers"]
    return found


def environment(container: dict) -> dict[str, str]:
    return {variable["name"]: variable["value"] for variable in container["env"]}


def mounts_of(objects: list, name: str) -> dict[str, dict]:
    """By path in the container: the mount, with what it mounts under ``source``."""
    volumes = {volume["name"]: volume for volume in pod_of(objects, name)["volumes"]}
    return {
        mount["mountPath"]: {**mount, "source": volumes[mount["name"]]}
        for mount in container_of(objects, name)["volumeMounts"]
    }


@pytest.mark.parametrize("version", KUBERNETES)
def test_every_object_is_valid_for_kubernetes(objects: list, version: str):
    for found in objects:
        kubernetes_validate.validate(found, version, strict=True)


def test_no_daemon_set_selects_pods_of_another(objects: list):
    selectors = {name: found["spec"]["selector"]["matchLabels"] for name, found in daemon_sets(objects).items()}
    labels = {name: found["spec"]["template"]["metadata"]["labels"] for name, found in daemon_sets(objects).items()}
    assert set(selectors) == {"nvdp", "nvdp-mps"}
    for name, selector in selectors.items():
        chosen = {other for other, carried in labels.items() if selector.items() <= carried.items()}
        assert chosen == {name}


def test_the_overlay_is_the_base_with_the_component():
    base = kustomize.build(MODES["base"])
    assert kustomize.build(MANIFESTS / "overlays/mps") == kustomize.apply(COMPONENT, base)


def test_the_plugin_only_gets_to_see_how_the_daemons_are(mode: str, objects: list):
    plain = kustomize.build(MODES[mode])
    pod, before = pod_of(objects, "nvdp"), pod_of(plain, "nvdp")
    (container,), (container_before,) = pod.pop("containers"), before.pop("containers")
    added = [mount for mount in container.pop("volumeMounts") if mount not in container_before["volumeMounts"]]
    del container_before["volumeMounts"]
    assert added == [{"name": "mps", "mountPath": "/mps", "readOnly": True}]
    assert container == container_before, "no other right, image or variable"
    volumes = [volume for volume in pod.pop("volumes") if volume not in before["volumes"]]
    del before["volumes"]
    assert volumes == [{"name": "mps", "hostPath": {"path": DEFAULT_ROOT, "type": "DirectoryOrCreate"}}]
    assert pod == before, "and no PID namespace of the node"


def test_where_mps_is_off_nothing_is_privileged_that_was_not_before():
    for path in (MANIFESTS / "base", MANIFESTS / "overlays/runtime-injected"):
        for found in kustomize.build(path):
            assert "hostPID" not in kustomize.pod_spec(found)
        for container in kustomize.containers(kustomize.build(path)):
            assert "privileged" not in container["securityContext"]


def test_daemons_see_the_nodes_processes_and_may_change_the_nodes_gpus(objects: list):
    pod = pod_of(objects, "nvdp-mps")
    assert pod["hostPID"] is True
    assert not {"hostNetwork", "hostIPC"} & set(pod)
    assert container_of(objects, "nvdp-mps")["securityContext"]["privileged"] is True


def test_an_upgrade_or_a_probe_ends_no_clients(objects: list):
    assert daemon_sets(objects)["nvdp-mps"]["spec"]["updateStrategy"] == {"type": "OnDelete"}
    container = container_of(objects, "nvdp-mps")
    assert "livenessProbe" not in container
    assert container["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "http"}
    assert "limits" not in container["resources"], "servers are killed for memory like any process of the container"


def test_daemons_have_longer_to_stop_than_they_take(objects: list):
    times = Times()
    daemon_s = COMMAND_LIMIT_S + times.quit_s + times.term_s + times.kill_s
    assert pod_of(objects, "nvdp-mps")["terminationGracePeriodSeconds"] >= 2 * daemon_s, "and compute modes after that"


def test_an_image_that_is_named_in_the_base_is_that_of_both(tmp_path: Path):
    copied = shutil.copytree(MANIFESTS, tmp_path / "manifests")
    base = copied / "base/kustomization.yaml"
    base.write_text(re.sub(r"newName: nvdp\b", "newName: registry.example/gpu/nvdp", base.read_text()))
    images = [container["image"] for container in kustomize.containers(kustomize.build(copied / "overlays/mps"))]
    assert images == [f"registry.example/gpu/nvdp:{nvdp.__version__}"] * 2
    assert [path for path in MANIFESTS.rglob("*.yaml") if "newName" in path.read_text()] == [
        MANIFESTS / "base/kustomization.yaml"
    ], "no other file names it"


def test_both_processes_use_the_same_image_configuration_and_directories(objects: list):
    plugin, daemons = mounts_of(objects, "nvdp"), mounts_of(objects, "nvdp-mps")
    for path in ("/config", "/mps", "/var/lib/nvdp", "/run/nvdp"):
        assert daemons[path]["source"] == plugin[path]["source"]
    assert daemons["/run/nvdp"]["readOnly"] is True
    assert not daemons["/var/lib/nvdp"].get("readOnly", False)
    assert container_of(objects, "nvdp-mps")["image"] == container_of(objects, "nvdp")["image"]
    assert container_of(objects, "nvdp-mps")["image"] == f"nvdp:{nvdp.__version__}"


def test_what_is_mounted_in_the_mps_root_is_seen_on_the_node(objects: list):
    mount = mounts_of(objects, "nvdp-mps")["/mps"]
    assert (mount["mountPropagation"], mount.get("readOnly", False)) == ("Bidirectional", False)


def test_the_daemons_options_are_where_the_code_looks(objects: list):
    container = container_of(objects, "nvdp-mps")
    known = {name for option in list_options() for name in option.key.setting.environment}
    assert set(environment(container)) <= known | WORDS_TO_RUNTIMES
    options, _ = parse_options({}, environment(container))
    assert container["args"] == ["mps"]
    assert [port["containerPort"] for port in container["ports"]] == [METRICS_PORT]
    mounts = mounts_of(objects, "nvdp-mps")
    for path in (options.config_file.parent, options.mps_dir, options.state_dir, options.run_dir):
        assert str(path) in mounts


def test_it_comes_up_wherever_the_plugin_does_and_needs_no_rights_in_the_cluster(objects: list):
    pod, plugin = pod_of(objects, "nvdp-mps"), pod_of(objects, "nvdp")
    for key in ("tolerations", "priorityClassName", "automountServiceAccountToken", "enableServiceLinks"):
        assert pod[key] == plugin[key]
    accounts = {found["metadata"]["name"]: found for found in objects if found["kind"] == "ServiceAccount"}
    assert pod["serviceAccountName"] != plugin["serviceAccountName"]
    assert accounts[pod["serviceAccountName"]]["automountServiceAccountToken"] is False


def test_the_daemons_driver_comes_with_cuda_by_the_runtime_in_all_modes(objects: list):
    words = environment(container_of(objects, "nvdp-mps"))
    assert (words["NVIDIA_VISIBLE_DEVICES"], words["NVIDIA_DRIVER_CAPABILITIES"]) == ("all", "compute,utility")


def test_gpu_nodes_are_picked_for_both(objects: list):
    picked = kustomize.apply(MANIFESTS / "components/gpu-nodes", objects)
    plugin, daemons = pod_of(picked, "nvdp")["affinity"], pod_of(picked, "nvdp-mps")["affinity"]
    assert plugin == daemons


def test_on_openshift_both_service_accounts_may_do_what_their_pods_ask_for(objects: list):
    given = kustomize.apply(MANIFESTS / "components/openshift", objects)
    (binding,) = [found for found in given if found["kind"] == "RoleBinding"]
    kubernetes_validate.validate(binding, kubernetes_validate.latest_version(), strict=True)
    assert {subject["name"] for subject in binding["subjects"]} == {
        pod_of(given, name)["serviceAccountName"] for name in ("nvdp", "nvdp-mps")
    }
    assert binding["roleRef"]["name"] == "system:openshift:scc:privileged"


def test_the_example_file_shares_through_mps_what_the_example_pods_and_the_policy_name():
    text = (ROOT / "config/mps.yaml").read_text()
    (entry,) = parse_config(text, name="mps.yaml").sharing.mps.resources
    assert (entry.name, entry.replicas) == (GPU_RESOURCE, 4)
    (deployment,) = kustomize.load(MANIFESTS / "examples/mps-deployment.yaml")
    (container,) = kustomize.containers([deployment])
    assert list(container["resources"]["limits"]) == [str(entry.rename)]
    *_, names = kustomize.load(MANIFESTS / "admission/mps.yaml")
    assert names["data"]["mps"].split() == [str(entry.rename)]


def test_the_example_pods_compute_and_print_what_the_page_says():
    (deployment,) = kustomize.load(MANIFESTS / "examples/mps-deployment.yaml")
    (container,) = kustomize.containers([deployment])
    (program,) = container["args"]
    called = [node.args[0].value for node in ast.walk(ast.parse(program)) if is_call(node)]
    assert called == [
        "cuInit",
        "cuDeviceGet",
        "cuDeviceGetUuid",
        "cuCtxCreate_v2",
        "cuMemAlloc_v2",
        "cuMemsetD8_v2",
        "cuCtxSynchronize",
    ]
    page = (ROOT / "docs/mps.md").read_text()
    said, path = re.findall(r"prints `GPU-…(: [^`/]+)(/[^`]+)`", page)[0]
    assert f'{said}{{pipe}}"' in program
    assert path == f"{CLIENT_DIR}/{next(iter(container['resources']['limits']))}/pipe"


def is_call(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "call"


def test_the_policy_reads_the_list_that_lies_beside_it_and_lets_pods_through_without():
    policy, binding, names = kustomize.load(MANIFESTS / "admission/mps.yaml")
    reference = binding["spec"]["paramRef"]
    assert policy["spec"]["paramKind"] == {"apiVersion": names["apiVersion"], "kind": names["kind"]}
    assert {key: names["metadata"][key] for key in ("name", "namespace")} == {
        key: reference[key] for key in ("name", "namespace")
    }
    assert reference["parameterNotFoundAction"] == "Allow"
    (rule,) = policy["spec"]["validations"]
    assert rule["message"].startswith("one container can use one MPS daemon")
