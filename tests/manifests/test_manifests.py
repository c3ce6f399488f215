"""What a cluster applies: valid for Kubernetes, as the design says, and in step with the code."""

from __future__ import annotations

import re
from pathlib import Path

import kubernetes_validate
import kustomize
import pytest
import yaml

import nvdp
from nvdp.config.load import parse_config
from nvdp.config.options import list_options, parse_options
from nvdp.config.process import HOST_ETC, ProcessOptions
from nvdp.model.listing import DeviceListStrategy
from nvdp.planning.response import VISIBLE_DEVICES, VOLUME_MOUNT_ROOT

ROOT = Path(__file__).resolve().parents[2]
MANIFESTS = ROOT / "manifests"

MODES = {
    "base": MANIFESTS / "base",
    "runtime-injected": MANIFESTS / "overlays/runtime-injected",
    "privileged": MANIFESTS / "overlays/privileged",
    "cdi": MANIFESTS / "overlays/cdi",
}
EXAMPLES = sorted((MANIFESTS / "examples").glob("*.yaml"))
POLICIES = {  # of each the oldest Kubernetes that has its kind
    MANIFESTS / "admission/mps.yaml": "1.30",
    MANIFESTS / "admission/refuse.yaml": "1.30",
    MANIFESTS / "admission/void.yaml": "1.36",
}
KUBERNETES = ("1.28", "1.33", kubernetes_validate.latest_version())
NO_OPTIONS = {"NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES"}  # words to the NVIDIA container runtime


def find(objects: list, kind: str) -> dict:
    (found,) = [one for one in objects if one["kind"] == kind]
    return found


def environment(container: dict) -> dict[str, str]:
    return {variable["name"]: variable["value"] for variable in container["env"]}


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def objects(mode: str) -> list:
    return kustomize.build(MODES[mode])


@pytest.fixture
def pod(objects: list) -> dict:
    return kustomize.pod_spec(find(objects, "DaemonSet"))


@pytest.fixture
def container(pod: dict) -> dict:
    (found,) = pod["containers"]
    return found


@pytest.mark.parametrize("version", KUBERNETES)
def test_every_object_is_valid_for_kubernetes(objects: list, version: str):
    for found in objects:
        kubernetes_validate.validate(found, version, strict=True)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_every_example_is_valid_and_asks_for_a_gpu_where_gpus_are(path: Path):
    for found in kustomize.load(path):
        kubernetes_validate.validate(found, kubernetes_validate.latest_version(), strict=True)
        for container in kustomize.containers([found]):
            assert container["resources"]["limits"] in ({"nvidia.com/gpu": 1}, {"nvidia.com/gpu.mps": 1})
        assert {"key": "nvidia.com/gpu", "operator": "Exists"} in kustomize.pod_spec(found)["tolerations"]


def test_every_file_is_reached_by_a_kustomization_or_is_one_to_apply_alone():
    reached = {*EXAMPLES, *POLICIES}
    for path in MANIFESTS.rglob("kustomization.yaml"):
        content = kustomize.load_one(path)
        names = [*content.get("resources", []), *(patch["path"] for patch in content.get("patches", []))]
        reached |= {path, *((path.parent / name).resolve() for name in names)}
    assert {path for path in MANIFESTS.rglob("*") if path.is_file()} == {path for path in reached if path.is_file()}


def test_the_base_is_the_runtime_injected_mode():
    assert kustomize.build(MODES["base"]) == kustomize.build(MODES["runtime-injected"])


def test_objects_are_in_the_namespace_and_need_no_rights_in_the_cluster(objects: list, pod: dict):
    assert {one["kind"] for one in objects} == {
        "Namespace",
        "ResourceQuota",
        "ServiceAccount",
        "ConfigMap",
        "DaemonSet",
    }
    assert {one["metadata"].get("namespace") for one in objects if one["kind"] != "Namespace"} == {"nvdp"}
    assert find(objects, "ServiceAccount")["automountServiceAccountToken"] is False
    assert pod["automountServiceAccountToken"] is False


def test_the_image_is_the_version_of_the_code_and_runs_the_daemon(container: dict):
    assert container["image"] == f"nvdp:{nvdp.__version__}"
    assert container["args"] == ["run"]


def test_it_comes_up_on_tainted_nodes_first_and_leaves_the_hosts_network_alone(pod: dict):
    assert {"operator": "Exists"} in pod["tolerations"]
    assert {toleration.get("key") for toleration in pod["tolerations"]} == {
        None,
        "nvidia.com/gpu",
        "CriticalAddonsOnly",
    }
    assert pod["priorityClassName"] == "system-node-critical"
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod)
    assert pod["terminationGracePeriodSeconds"] > 5


def test_one_pod_per_node_is_replaced_at_a_time_and_never_two_run_on_a_node(objects: list):
    assert find(objects, "DaemonSet")["spec"]["updateStrategy"] == {
        "type": "RollingUpdate",
        "rollingUpdate": {"maxSurge": 0, "maxUnavailable": "10%"},
    }


def test_memory_is_limited_to_more_than_twice_what_was_measured(container: dict):
    assert container["resources"] == {
        "requests": {"cpu": "10m", "memory": "80Mi"},
        "limits": {"memory": "256Mi"},
    }


def test_runtime_injected_is_root_without_any_power():
    (container,) = kustomize.containers(kustomize.build(MODES["base"]))
    assert container["securityContext"] == {
        "runAsUser": 0,
        "runAsGroup": 0,
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def test_privileged_sees_the_hosts_devices_and_driver_as_they_come_and_go():
    objects = kustomize.build(MODES["privileged"])
    (container,) = kustomize.containers(objects)
    assert container["securityContext"]["privileged"] is True
    mounts = {mount["mountPath"]: mount for mount in container["volumeMounts"]}
    assert mounts["/dev"]["mountPropagation"] == "HostToContainer"
    assert mounts["/driver-root"]["mountPropagation"] == "HostToContainer"
    assert mounts["/driver-root"]["readOnly"] is True
    base = {mount["mountPath"] for mount in kustomize.containers(kustomize.build(MODES["base"]))[0]["volumeMounts"]}
    assert set(mounts) == base | {"/dev", "/driver-root"}


def test_the_probes_ask_the_paths_and_the_port_that_are_served(container: dict):
    assert container["livenessProbe"]["httpGet"] == {"path": "/healthz", "port": "http"}
    assert container["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "http"}
    assert container["livenessProbe"]["timeoutSeconds"] > 10, "the event loop has 10 s to answer"
    assert [port["name"] for port in container["ports"]] == ["http"]


def test_the_configuration_is_mounted_as_a_directory_and_found_there(objects: list, pod: dict, container: dict):
    (mount,) = [mount for mount in container["volumeMounts"] if mount["name"] == "config"]
    assert all("subPath" not in mount for mount in container["volumeMounts"])
    (volume,) = [volume for volume in pod["volumes"] if volume["name"] == "config"]
    config_map = find(objects, "ConfigMap")
    assert volume["configMap"]["name"] == config_map["metadata"]["name"]
    (path,) = [Path(variable["value"]) for variable in container["env"] if variable["name"] == "CONFIG_FILE"]
    assert str(path.parent) == mount["mountPath"]
    assert path.name in config_map["data"]


def test_every_volume_is_mounted_and_every_mount_has_its_volume(pod: dict, container: dict):
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}
    hosts = {volume["name"]: volume["hostPath"]["path"] for volume in pod["volumes"] if "hostPath" in volume}
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    same = {"device-plugins", "pod-resources", "state", "run", "dev"} & set(hosts)
    assert {name: mounts[name] for name in same} == {name: hosts[name] for name in same}


def test_the_configuration_of_the_config_map_is_valid_and_shares_by_time(objects: list):
    for name, text in find(objects, "ConfigMap")["data"].items():
        config = parse_config(text, name=name)
        assert config.warnings == ()
        assert config.sharing.time_slicing is not None
        assert [entry.replicas for entry in config.sharing.time_slicing.resources] == [4]


def test_every_environment_variable_is_an_option_and_parses(container: dict):
    known = {name for option in list_options() for name in option.key.setting.environment}
    assert set(environment(container)) <= known | NO_OPTIONS
    options, _ = parse_options({}, environment(container))
    assert options.config_file == Path("/config/config.yaml")


def test_ports_and_mounts_are_where_the_code_looks_by_default(container: dict):
    options, defaults = parse_options({}, environment(container))[0], ProcessOptions()
    assert [port["containerPort"] for port in container["ports"]] == [options.metrics_port] == [defaults.metrics_port]
    mounts = {mount["mountPath"] for mount in container["volumeMounts"]}
    directories = (options.kubelet_socket.parent, options.pod_resources_socket.parent, options.state_dir)
    for path in (*directories, options.run_dir):
        assert str(path) in mounts
    assert (options.kubelet_socket, options.state_dir) == (defaults.kubelet_socket, defaults.state_dir)


def test_scrapes_find_the_port(objects: list, container: dict):
    annotations = find(objects, "DaemonSet")["spec"]["template"]["metadata"]["annotations"]
    assert annotations["prometheus.io/port"] == str(container["ports"][0]["containerPort"])


def test_the_patch_for_a_kubelet_elsewhere_moves_what_is_mounted_and_not_where(pod: dict, objects: list):
    page = (MANIFESTS.parent / "docs/install.md").read_text().split("## A kubelet elsewhere")[1]
    (block,) = re.findall(r"```yaml\n(.*?)```", page.split("\n## ")[0], re.DOTALL)
    (patch,) = yaml.safe_load(block)["patches"]
    daemon_set = find(objects, "DaemonSet")
    moved = kustomize.merge(daemon_set, yaml.safe_load(patch["patch"]))
    kubernetes_validate.validate(moved, kubernetes_validate.latest_version(), strict=True)
    assert patch["target"] == {"kind": "DaemonSet", "name": daemon_set["metadata"]["name"]}
    before, after = (
        {volume["name"]: volume.get("hostPath") for volume in one["volumes"]}
        for one in (pod, kustomize.pod_spec(moved))
    )
    changed = {name: path for name, path in after.items() if path != before[name]}
    assert changed.keys() == {"device-plugins", "pod-resources"}
    for name, path in changed.items():
        assert path == {**before[name], "path": f"/var/snap/microk8s/common{before[name]['path']}"}


def test_gpu_nodes_are_picked_by_any_of_the_labels_that_name_them():
    affinity = kustomize.apply(MANIFESTS / "components/gpu-nodes", kustomize.build(MODES["base"]))
    kubernetes_validate.validate(find(affinity, "DaemonSet"), kubernetes_validate.latest_version(), strict=True)
    terms = kustomize.pod_spec(find(affinity, "DaemonSet"))["affinity"]["nodeAffinity"][
        "requiredDuringSchedulingIgnoredDuringExecution"
    ]["nodeSelectorTerms"]
    assert {term["matchExpressions"][0]["key"] for term in terms} == {
        "nvidia.com/gpu.present",
        "feature.node.kubernetes.io/pci-10de.present",
        "feature.node.kubernetes.io/pci-0300_10de.present",
        "feature.node.kubernetes.io/pci-0302_10de.present",
    }


@pytest.mark.parametrize("mode", ["base", "privileged"])
def test_with_cdi_the_specs_lie_where_runtimes_look_and_the_driver_where_it_is_looked_up(mode: str):
    before = kustomize.build(MODES[mode])
    objects = kustomize.apply(MANIFESTS / "components/cdi", before)
    kubernetes_validate.validate(find(objects, "DaemonSet"), kubernetes_validate.latest_version(), strict=True)
    (container,), (plain,) = kustomize.containers(objects), kustomize.containers(before)
    options, overrides = parse_options({}, environment(container))
    flags = parse_config("version: v1", name="file", overrides=overrides).flags
    assert flags.plugin.device_list_strategy == (DeviceListStrategy.CDI_CRI,)
    mounts = {mount["mountPath"]: mount for mount in container["volumeMounts"]}
    hosts = {
        volume["name"]: volume["hostPath"]
        for volume in kustomize.pod_spec(find(objects, "DaemonSet"))["volumes"]
        if "hostPath" in volume
    }
    specs, driver = mounts[str(options.cdi_dir)], mounts[flags.plugin.container_driver_root]
    assert not specs.get("readOnly", False)
    assert hosts[specs["name"]] == {"path": "/var/run/cdi", "type": "DirectoryOrCreate"}
    assert (driver["readOnly"], driver["mountPropagation"]) == (True, "HostToContainer")
    assert hosts[driver["name"]]["path"] == flags.nvidia_driver_root
    assert container["securityContext"] == plain["securityContext"], "it takes no more rights"


def test_the_patch_that_lets_nvdp_read_less_leaves_usr_where_it_is_looked_for():
    page = (MANIFESTS.parent / "docs/cdi.md").read_text().split("**Less to read.**")[1]
    content = yaml.safe_load(re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)[0])
    before = find(
        kustomize.apply(MANIFESTS / "components/cdi", kustomize.build(MODES["base"])),
        "DaemonSet",
    )
    after = kustomize.merge(before, yaml.safe_load(content["patches"][0]["patch"]))
    kubernetes_validate.validate(after, kubernetes_validate.latest_version(), strict=True)
    (container,) = kustomize.pod_spec(after)["containers"]
    (volume,) = [one for one in kustomize.pod_spec(after)["volumes"] if one["name"] == "driver-root"]
    (mount,) = [one for one in container["volumeMounts"] if one["name"] == "driver-root"]
    flags = parse_config("version: v1", name="file", overrides=parse_options({}, environment(container))[1]).flags
    root = Path(flags.plugin.container_driver_root)
    assert Path(mount["mountPath"]).relative_to(root) == Path(volume["hostPath"]["path"]).relative_to("/")
    assert (mount["readOnly"], mount["mountPropagation"]) == (True, "HostToContainer")
    assert volume["hostPath"]["type"] == "Directory"


def test_the_runtimes_configuration_is_mounted_where_the_check_looks_and_can_only_be_read():
    objects = kustomize.apply(MANIFESTS / "components/runtime-check", kustomize.build(MODES["base"]))
    kubernetes_validate.validate(find(objects, "DaemonSet"), kubernetes_validate.latest_version(), strict=True)
    (container,) = kustomize.containers(objects)
    found = {
        mount["mountPath"]: mount for mount in container["volumeMounts"] if mount["mountPath"].startswith("/host-etc")
    }
    assert set(found) == {str(HOST_ETC / name) for name in ("containerd", "nvidia-container-runtime")}
    assert all(mount["readOnly"] for mount in found.values())
    volumes = {volume["name"]: volume for volume in kustomize.pod_spec(find(objects, "DaemonSet"))["volumes"]}
    for path, mount in found.items():
        assert volumes[mount["name"]]["hostPath"]["path"] == path.replace(str(HOST_ETC), "/etc")


@pytest.mark.parametrize("path", POLICIES, ids=lambda path: path.name)
def test_a_policy_is_valid_and_leaves_alone_what_runs_the_gpus(path: Path):
    policy, binding, *lists = kustomize.load(path)
    for version in (POLICIES[path], kubernetes_validate.latest_version()):
        for found in (policy, binding, *lists):
            kubernetes_validate.validate(found, version, strict=True)
    assert binding["spec"]["policyName"] == policy["metadata"]["name"]
    (rule,) = binding["spec"]["matchResources"]["namespaceSelector"]["matchExpressions"]
    assert (rule["operator"], rule["values"]) == ("NotIn", ["nvdp", "kube-system", "gpu-operator"])


def test_what_is_refused_is_what_nvdp_itself_tells_runtimes_by():
    policy, _ = kustomize.load(MANIFESTS / "admission/refuse.yaml")
    rules = [rule["expression"] for rule in policy["spec"]["validations"]]
    prefix = parse_config("version: v1", name="file").flags.plugin.cdi_annotation_prefix
    for rule, word in zip(rules, (VISIBLE_DEVICES, Path(VOLUME_MOUNT_ROOT).name, prefix), strict=True):
        assert f'"{word}"' in rule


def test_no_manifest_names_a_registry():
    images = [
        image
        for path in MANIFESTS.rglob("*.yaml")
        for image in re.findall(r"(?:image|newName): *(\S+)", path.read_text())
    ]
    assert images
    assert not [image for image in images if "/" in image]
