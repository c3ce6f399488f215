"""The manifests of what concerns the cluster: a component for each feature, with its own rights and nothing else."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from functools import cache
from operator import itemgetter
from pathlib import Path
from typing import Any

import kubernetes_validate
import kustomize
import pytest
import yaml

from nvdp.config.cluster import Fallback, LabelTarget
from nvdp.config.load import parse_config
from nvdp.config.options import list_options, parse_options
from nvdp.config.process import ProcessOptions

MANIFESTS = Path(__file__).resolve().parents[2] / "manifests"
COMPONENTS = MANIFESTS / "components"
PAGE = (MANIFESTS.parent / "docs/cluster.md").read_text()
OVERLAYS = {
    "cluster": ("cluster", "config-by-label", "labels-node-feature", "events"),
    "cluster-nodes": (
        *("cluster", "config-by-label", "labels-node-feature", "events"),
        *("node-fence", "node-condition", "startup-taint"),
    ),
}
FEATURES: dict[str, tuple[str, ...]] = {  # of each what goes before it
    "config-by-label": ("cluster",),
    "labels-node-feature": ("cluster",),
    "labels-file": (),
    "labels-node": ("cluster", "node-fence"),
    "events": ("cluster",),
    "node-condition": ("cluster", "node-fence"),
    "startup-taint": ("cluster", "node-fence"),
}
POD = {"spec.nodeName": "gpu-a3", "metadata.name": "nvdp-7x2bq", "metadata.namespace": "nvdp"}
TOKEN_DIR = "/var/run/secrets/kubernetes.io/serviceaccount"
KUBECTL = shutil.which("kubectl")
Object = dict[str, Any]


@cache
def build(*components: str, base: str = "base") -> list[Object]:
    """For reading only: it is made once."""
    objects = kustomize.build(MANIFESTS / base)
    for name in components:
        objects = kustomize.apply(COMPONENTS / name, objects)
    return objects


def build_feature(name: str) -> list[Object]:
    return build(*FEATURES[name], name)


def find(objects: list[Object], kind: str, name: str = "nvdp") -> Object:
    return kustomize.find_named(objects, kind, name)


def container_of(objects: list[Object], name: str = "nvdp") -> Object:
    (container,) = kustomize.pod_spec(find(objects, "DaemonSet", name))["containers"]
    return container


def environment(objects: list[Object], name: str = "nvdp") -> dict[str, str]:
    """As the kubelet gives it to the container on one node."""
    found = {}
    for variable in container_of(objects, name)["env"]:
        source = variable.get("valueFrom", {})
        if "fieldRef" in source:
            found[variable["name"]] = POD[source["fieldRef"]["fieldPath"]]
        elif "configMapKeyRef" in source:
            reference = source["configMapKeyRef"]
            found[variable["name"]] = find(objects, "ConfigMap", reference["name"])["data"][reference["key"]]
        else:
            found[variable["name"]] = variable["value"]
    return found


def parse(objects: list[Object], name: str = "nvdp") -> ProcessOptions:
    return parse_options({}, environment(objects, name))[0]


def list_rights(objects: list[Object], account: str = "nvdp") -> set[tuple[str, str, str, str]]:
    """What the pods of nvdp may do: namespace (none: everywhere), resource, name (none: all) and verb."""
    found = set()
    for binding in (one for one in objects if one["kind"] in {"RoleBinding", "ClusterRoleBinding"}):
        (subject,) = binding["subjects"]
        assert (subject["kind"], subject["namespace"]) == ("ServiceAccount", "nvdp")
        assert subject["name"] in {"nvdp", "nvdp-mps"}
        if subject["name"] != account:
            continue
        for rule in find(objects, binding["roleRef"]["kind"], binding["roleRef"]["name"])["rules"]:
            assert "nonResourceURLs" not in rule
            found |= {
                (binding["metadata"].get("namespace", ""), ".".join(filter(None, (resource, group))), name, verb)
                for group in rule["apiGroups"]
                for resource in rule["resources"]
                for name in rule.get("resourceNames", [""])
                for verb in rule["verbs"]
            }
    return found


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_an_overlay_is_its_components_in_their_order(overlay: str):
    assert kustomize.build(MANIFESTS / "overlays" / overlay) == build(*OVERLAYS[overlay])


def check(objects: list[Object]) -> None:
    for found in objects:
        oldest = "1.30" if found["kind"].startswith("ValidatingAdmission") else "1.28"
        for version in (oldest, kubernetes_validate.latest_version()):
            kubernetes_validate.validate(found, version, strict=True)


@pytest.mark.parametrize("feature", FEATURES)
def test_every_object_is_valid_for_kubernetes(feature: str):
    check([one for one in build_feature(feature) if one not in build(*FEATURES[feature])])


@pytest.mark.parametrize("base", ["overlays/privileged", "overlays/cdi"])
def test_all_together_are_valid_in_every_mode(base: str):
    check(build(*OVERLAYS["cluster-nodes"], base=base))


@pytest.mark.parametrize("feature", FEATURES)
def test_features_go_along_with_each_other_and_with_mps(feature: str):
    others = [name for name in OVERLAYS["cluster-nodes"] if (name + feature).count("labels-") != 2]
    order = ("mps", *others, feature, "config-by-label-mps", "gpu-nodes", "runtime-check")
    objects = build(*dict.fromkeys(order))
    assert len({kustomize.identity(one) for one in objects}) == len(objects)


@pytest.mark.skipif(KUBECTL is None, reason="no kubectl here to build with")
@pytest.mark.parametrize("overlay", [*OVERLAYS, "labels-file", "labels-node"])
def test_kubectl_builds_the_same(overlay: str, tmp_path: Path):
    target = MANIFESTS / "overlays" / overlay
    if overlay in FEATURES:
        shutil.copytree(MANIFESTS, tmp_path / "manifests")
        target = tmp_path / "manifests/overlays/one"
        target.mkdir()
        components = [f"../../components/{name}" for name in (*FEATURES[overlay], overlay)]
        content = {"kind": "Kustomization", "resources": ["../../base"], "components": components}
        (target / "kustomization.yaml").write_text(json.dumps(content))
    done = subprocess.run([KUBECTL, "kustomize", target], capture_output=True, text=True, check=True, timeout=30)

    assert sort(list(yaml.safe_load_all(done.stdout))) == sort(kustomize.build(target))


def sort(objects: list[Object]) -> dict[tuple, Object]:
    """Without what has no meaning: the order in lists that have a key, and kustomize's empty lines in expressions."""
    for found in objects:
        spec = kustomize.pod_spec(found)
        spec.get("volumes", []).sort(key=itemgetter("name"))
        for container in spec.get("containers", []):
            container["env"].sort(key=itemgetter("name"))
            container["volumeMounts"].sort(key=itemgetter("mountPath"))
        for part in ("variables", "validations"):
            for one in found.get("spec", {}).get(part, []):
                one["expression"] = " ".join(one["expression"].split())
    return {kustomize.identity(found): found for found in objects}


@pytest.mark.parametrize("feature", FEATURES)
def test_every_variable_is_an_option_and_parses(feature: str):
    objects = build_feature(feature)
    known = {name for option in list_options() for name in option.key.setting.environment}
    assert set(environment(objects)) <= known
    options = parse(objects)
    if "cluster" in FEATURES[feature]:
        assert (options.node_name, options.pod_name, options.namespace) == tuple(POD.values())


@pytest.mark.parametrize(
    ("feature", "option", "value"),
    [
        ("config-by-label", "config_map", "nvdp-configs"),
        ("labels-node-feature", "write_labels", LabelTarget.NODE_FEATURE),
        ("labels-file", "write_labels", LabelTarget.FILE),
        ("labels-node", "write_labels", LabelTarget.NODE),
        ("events", "events", True),
        ("node-condition", "node_condition", "nvidia.com/GPUReady"),
        ("startup-taint", "startup_taint", "nvidia.com/gpu-not-ready"),
    ],
)
def test_a_component_switches_on_its_feature_and_no_other(feature: str, option: str, value: object):
    options, without = parse(build_feature(feature)), parse(build(*FEATURES[feature]))
    assert getattr(options, option) == value
    features = {"config_map", "write_labels", "events", "node_condition", "startup_taint"}
    for other in features - {option}:
        assert getattr(options, other) == getattr(without, other) == getattr(ProcessOptions(), other)


@pytest.mark.parametrize("feature", FEATURES)
def test_no_feature_takes_rights_over_the_node_or_changes_what_runs(feature: str):
    plain, changed = build(), build_feature(feature)
    for key in ("image", "args", "securityContext", "resources", "livenessProbe", "readinessProbe"):
        assert container_of(changed)[key] == container_of(plain)[key]
    pods = [dict(kustomize.pod_spec(find(objects, "DaemonSet"))) for objects in (plain, changed)]
    for pod in pods:
        del pod["containers"], pod["volumes"]
    assert pods[0] == pods[1]


# --- the token


def test_the_token_is_renewed_and_for_the_plugins_container_alone():
    objects = build("cluster")
    pod = kustomize.pod_spec(find(objects, "DaemonSet"))
    assert pod["automountServiceAccountToken"] is False
    assert find(objects, "ServiceAccount")["automountServiceAccountToken"] is False
    (mount,) = [mount for mount in container_of(objects)["volumeMounts"] if mount["mountPath"] == TOKEN_DIR]
    assert mount["readOnly"] is True
    (volume,) = [volume for volume in pod["volumes"] if volume["name"] == mount["name"]]
    token, authority, namespace = volume["projected"]["sources"]
    assert token["serviceAccountToken"] == {"path": "token", "expirationSeconds": 3600}
    assert [item["path"] for item in authority["configMap"]["items"]] == ["ca.crt"]
    assert [item["path"] for item in namespace["downwardAPI"]["items"]] == ["namespace"]
    assert volume["projected"]["defaultMode"] == 0o400


def test_a_token_alone_may_do_nothing_and_nor_may_the_fence():
    assert list_rights(build("cluster", "node-fence")) == set()


def test_a_file_of_features_needs_no_token_and_no_right():
    objects = build_feature("labels-file")
    assert list_rights(objects) == set()
    assert TOKEN_DIR not in {mount["mountPath"] for mount in container_of(objects)["volumeMounts"]}


def test_the_file_of_features_lies_where_it_is_written_by_default():
    objects = build_feature("labels-file")
    directory = Path(parse_config("version: v1", name="file").flags.gfd.output_file).parent
    (mount,) = [mount for mount in container_of(objects)["volumeMounts"] if mount["mountPath"] == str(directory)]
    assert "readOnly" not in mount
    volumes = {volume["name"]: volume for volume in kustomize.pod_spec(find(objects, "DaemonSet"))["volumes"]}
    assert volumes[mount["name"]]["hostPath"] == {"path": str(directory), "type": "DirectoryOrCreate"}


# --- rights


@pytest.mark.parametrize("feature", FEATURES)
def test_the_rights_of_a_feature_are_in_its_component_and_given_to_the_plugin(feature: str):
    own = [one for one in build_feature(feature) if one not in build(*FEATURES[feature])]
    for found in own:
        if found["kind"] in {"Role", "ClusterRole", "RoleBinding", "ClusterRoleBinding"}:
            assert found["metadata"]["name"] == f"nvdp-{feature}"
        if found["kind"].endswith("Binding"):
            assert found["roleRef"]["name"] == f"nvdp-{feature}"


def test_no_right_is_a_wildcard_and_only_fenced_features_write_to_nodes():
    for feature, before in FEATURES.items():
        rights = list_rights(build_feature(feature))
        assert not [right for right in rights if "*" in right]
        writes = {
            right for right in rights if right[1] in {"nodes", "nodes/status"} and right[3] not in {"get", "watch"}
        }
        assert bool(writes) == ("node-fence" in before)


def test_of_all_config_maps_one_may_be_read():
    rights = list_rights(build_feature("config-by-label"))
    assert {right[:3] for right in rights if right[1] == "configmaps"} == {("nvdp", "configmaps", "nvdp-configs")}


def test_the_page_lists_the_rights_of_each_component():
    table = re.findall(r"^\| `([\w-]+)` \| ([^|]+) \|$", PAGE.split("\n## Rights\n")[1].split("\n## ")[0], re.MULTILINE)
    told = {name: set() if text == "none" else set(parse_rights(text)) for name, text in table}
    assert told == {
        **{feature: list_rights(build_feature(feature)) for feature in FEATURES},
        "cluster": list_rights(build("cluster")),
        "node-fence": list_rights(build("cluster", "node-fence")),
    }


def parse_rights(text: str) -> Iterator[tuple[str, str, str, str]]:
    """As the page writes them: ``configmaps`` ``nvdp-configs`` in ``nvdp``: get, watch."""
    for part in text.split("; "):
        found = re.fullmatch(r"`([\w./-]+)`(?: `([\w-]+)`)?(?: in `(\w+)`)?: ([a-z, ]+)", part)
        assert found is not None, part
        resource, name, namespace, verbs = found.groups(default="")
        yield from ((namespace, resource, name, verb) for verb in verbs.split(", "))


# --- configuration by label


def test_nodes_are_configured_by_entries_of_the_map_that_is_shipped():
    objects = build_feature("config-by-label")
    options = parse(objects)
    entries = find(objects, "ConfigMap", options.config_map)["data"]
    assert options.config_file is None
    assert options.default_config in entries
    assert options.fallback_strategies == ()
    assert not set(entries) & {fallback.value for fallback in Fallback}
    for name, text in entries.items():
        assert parse_config(text, name=name).warnings == ()
    assert "nvdp-config" not in {one["metadata"]["name"] for one in objects if one["kind"] == "ConfigMap"}


def test_the_kubelet_brings_the_same_entries_for_a_start_without_the_server():
    objects = build_feature("config-by-label")
    options = parse(objects)
    (mount,) = [one for one in container_of(objects)["volumeMounts"] if one["mountPath"] == str(options.config_dir)]
    volumes = {volume["name"]: volume for volume in kustomize.pod_spec(find(objects, "DaemonSet"))["volumes"]}
    assert volumes[mount["name"]]["configMap"] == {"name": options.config_map, "optional": True}
    assert "subPath" not in mount


MPS_TOO = build("mps", "cluster", "config-by-label", "config-by-label-mps")


def test_the_daemons_of_mps_choose_as_the_plugin_does():
    check([one for one in MPS_TOO if one not in build("mps", "cluster", "config-by-label")])
    plugin, daemons = parse(MPS_TOO), parse(MPS_TOO, "nvdp-mps")
    for option in ("config_file", "config_map", "config_dir", "default_config", "node_label", "node_name", "namespace"):
        assert getattr(daemons, option) == getattr(plugin, option)
    volumes = [
        {volume["name"]: volume for volume in kustomize.pod_spec(find(MPS_TOO, "DaemonSet", name))["volumes"]}
        for name in ("nvdp", "nvdp-mps")
    ]
    for name in ("config", "api"):
        assert volumes[0][name] == volumes[1][name]


def test_the_daemons_of_mps_may_read_and_nothing_else():
    assert list_rights(MPS_TOO, "nvdp-mps") == list_rights(build_feature("config-by-label"))
    assert list_rights(MPS_TOO) == list_rights(build_feature("config-by-label"))
    plain = container_of(build("mps"), "nvdp-mps")
    for key in ("image", "args", "securityContext", "resources", "readinessProbe"):
        assert container_of(MPS_TOO, "nvdp-mps")[key] == plain[key]


# --- what is named in two places


@pytest.mark.parametrize(("feature", "key"), [("node-condition", "condition"), ("startup-taint", "startupTaint")])
def test_the_name_that_the_fence_goes_by_is_the_plugins_and_never_in_the_way_of_a_start(feature: str, key: str):
    before = find(build("cluster", "node-fence"), "ConfigMap", "nvdp-node-writes")["data"]
    objects = build_feature(feature)
    after = find(objects, "ConfigMap", "nvdp-node-writes")["data"]
    assert {name for name in after if after[name] != before[name]} == {key}
    (reference,) = [
        variable["valueFrom"]["configMapKeyRef"]
        for variable in container_of(objects)["env"]
        if "configMapKeyRef" in variable.get("valueFrom", {})
    ]
    assert reference == {"name": "nvdp-node-writes", "key": key, "optional": True}
