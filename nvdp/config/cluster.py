"""Options of the process that concern the cluster: how to reach its API server, and what is read and written there.

Part of ``process``. The API server is asked only if one of these calls for it.
"""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Annotated, Final

import msgspec

from nvdp.config.keys import Setting, camel_key

NODE_LABEL: Final = "nvidia.com/device-plugin.config"
_NAME: Final = r"[a-z0-9]([-a-z0-9]{0,251}[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*"  # of most objects
_KEY_NAME: Final = r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
_KEY: Final = rf"((?=[^/]{{1,253}}/){_NAME}/)?{_KEY_NAME}"  # of labels, taints and conditions
_KEY_TEXT: Final = "the name of a {}; write one like {}"


class LabelTarget(enum.Enum):
    """Where labels are written. AUTO: as ``flags.useNodeFeatureAPI`` says."""

    NONE = "none"
    AUTO = "auto"
    NODE_FEATURE = "node-feature"
    FILE = "file"
    NODE = "node"

    @property
    def needs_node(self) -> bool:
        """Whether the API server may have to be asked, which takes the name of the node."""
        return self not in {LabelTarget.NONE, LabelTarget.FILE}


class Fallback(enum.Enum):
    """What is used on a node without a label where no default is named."""

    NAMED = "named"
    SINGLE = "single"
    EMPTY = "empty"


class ClusterOptions(msgspec.Struct, frozen=True, kw_only=True, rename=camel_key):
    """Options of ``nvdp run`` about the cluster."""

    node_name: Annotated[
        str,
        Setting(
            "the name of this node in the cluster",
            ("node-name",),
            ("NODE_NAME",),
            form=rf"(?=.{{1,253}}$){_NAME}",
            form_text=_KEY_TEXT.format("node", "gpu-a3"),
        ),
    ] = ""
    kubeconfig: Annotated[
        Path | None,
        Setting(
            "file that says how to reach the API server; else the pod's service account does",
            ("kubeconfig",),
            ("KUBECONFIG",),
        ),
    ] = None
    namespace: Annotated[
        str,
        Setting(
            "namespace of this pod, where its ConfigMap and the object with the labels are",
            ("namespace",),
            ("NAMESPACE",),
            form=r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?",
            form_text=_KEY_TEXT.format("namespace", "nvdp"),
            default_text="that of the service account",
        ),
    ] = ""
    pod_name: Annotated[
        str, Setting("name of this pod, which is to own the object with the labels", ("pod-name",), ("POD_NAME",))
    ] = ""
    node_label: Annotated[
        str,
        Setting(
            "label of the node whose value is the name of its configuration",
            ("node-label",),
            ("NODE_LABEL",),
            form=_KEY,
            form_text=_KEY_TEXT.format("label", NODE_LABEL),
        ),
    ] = NODE_LABEL
    config_map: Annotated[
        str,
        Setting(
            "ConfigMap whose entries are configurations, as NAME or NAMESPACE/NAME",
            ("config-map",),
            ("NVDP_CONFIG_MAP",),
            form=rf"([a-z0-9]([-a-z0-9]{{0,61}}[a-z0-9])?/)?{_NAME}",
            form_text=_KEY_TEXT.format("ConfigMap", "nvdp/nvdp-configs"),
        ),
    ] = ""
    config_dir: Annotated[
        Path | None,
        Setting("directory whose files are configurations", ("config-dir",), ("CONFIG_FILE_SRCDIR",)),
    ] = None
    default_config: Annotated[
        str,
        Setting("name of the configuration of nodes without the label", ("default-config",), ("DEFAULT_CONFIG",)),
    ] = ""
    fallback_strategies: Annotated[
        tuple[Fallback, ...],
        Setting(
            "what to use without label and default, in this order: the one called default (named), the only one there"
            " is (single), none (empty)",
            ("fallback-strategies",),
            ("FALLBACK_STRATEGIES",),
        ),
    ] = ()
    write_labels: Annotated[
        LabelTarget,
        Setting(
            "where labels about the GPUs are written: an object for node-feature-discovery (node-feature), a file"
            " for it (file), the Node itself (node), or as flags.useNodeFeatureAPI says (auto)",
            ("write-labels",),
            ("NVDP_WRITE_LABELS",),
        ),
    ] = LabelTarget.NONE
    events: Annotated[bool, Setting("tell what happens as events of the node", ("events",), ("NVDP_EVENTS",))] = False
    node_condition: Annotated[
        str,
        Setting(
            "show the plugin's state as the condition of this type on the node",
            ("node-condition",),
            ("NVDP_NODE_CONDITION",),
            form=_KEY,
            form_text=_KEY_TEXT.format("condition", "nvidia.com/GPUReady"),
        ),
    ] = ""
    startup_taint: Annotated[
        str,
        Setting(
            "key of a taint that is taken off the node once it advertises what it should",
            ("startup-taint",),
            ("NVDP_STARTUP_TAINT",),
            form=_KEY,
            form_text=_KEY_TEXT.format("taint", "nvidia.com/gpu-not-ready"),
        ),
    ] = ""
