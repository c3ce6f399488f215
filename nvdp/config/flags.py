"""The blocks ``flags`` and ``imex``: NVIDIA's own settings, nearly all of which are flags of the program too.

Part of ``schema``.
"""

from __future__ import annotations

import enum
from typing import Annotated, Final

import msgspec

from nvdp.config.keys import Setting, camel_key
from nvdp.model.duration import Duration, build_duration
from nvdp.model.listing import DeviceIDStrategy, DeviceListStrategy, SharedPolicy
from nvdp.model.platforms import DeviceDiscoveryStrategy

# A path as CDI specs take it: absolute, without dots in place of names, and without control characters.
_PATH: Final = r"(/(?!\.\.?(/|$))[^/\x00-\x1f\x7f]+)+"
_ROOT: Final = f"/?|{_PATH}/?"
_MPS_ROOT: Final = f"|{_PATH}/?"
_ROOT_TEXT: Final = "an absolute path; write one like /run/nvidia/driver"


class MigStrategy(enum.Enum):
    NONE = "none"
    SINGLE = "single"
    MIXED = "mixed"


class PluginFlags(msgspec.Struct, frozen=True, kw_only=True, rename=camel_key):
    """How devices are handed to containers."""

    pass_device_specs: Annotated[
        bool,
        Setting(
            "hand the device nodes to the container as well, for engines that check them",
            ("pass-device-specs",),
            ("PASS_DEVICE_SPECS",),
        ),
    ] = False
    device_list_strategy: Annotated[
        tuple[DeviceListStrategy, ...],
        Setting(
            "how the runtime is told which devices a container gets; one or a list",
            ("device-list-strategy",),
            ("DEVICE_LIST_STRATEGY",),
            single=True,
            remedy="containers would see no device; remove the key for envvar",
        ),
    ] = (DeviceListStrategy.ENVVAR,)
    device_id_strategy: Annotated[
        DeviceIDStrategy,
        Setting(
            "whether devices are named to the runtime by UUID or by NVML index",
            ("device-id-strategy",),
            ("DEVICE_ID_STRATEGY",),
        ),
    ] = DeviceIDStrategy.UUID
    cdi_annotation_prefix: Annotated[
        str,
        Setting(
            "prefix of the annotation of cdi-annotations, which the runtime must know",
            ("cdi-annotation-prefix",),
            ("CDI_ANNOTATION_PREFIX",),
            form=r"(?=.{1,254}$)[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/",
            form_text="a domain and a slash; write one like cdi.k8s.io/",
        ),
    ] = "cdi.k8s.io/"
    nvidia_ctk_path: Annotated[
        str,
        Setting(
            "path on the host of the program that CDI hooks run",
            ("nvidia-cdi-hook-path", "nvidia-ctk-path"),
            ("NVIDIA_CDI_HOOK_PATH", "NVIDIA_CTK_PATH"),
            form=_PATH,
            form_text="the absolute path of a file; write one like /usr/bin/nvidia-ctk",
        ),
    ] = "/usr/bin/nvidia-ctk"
    container_driver_root: Annotated[
        str,
        Setting(
            "where the driver root is mounted in the plugin's container; libraries are looked for under it",
            ("driver-root-ctr-path", "container-driver-root"),
            ("DRIVER_ROOT_CTR_PATH", "CONTAINER_DRIVER_ROOT"),
            form=_ROOT,
            form_text=_ROOT_TEXT,
        ),
    ] = "/driver-root"
    shared_devices_allocation_policy: Annotated[
        SharedPolicy | None,
        Setting(
            "how replicas are chosen: distributed or packed; allocation.sharedPolicy wins",
            ("shared-devices-allocation-policy",),
            ("SHARED_DEVICES_ALLOCATION_POLICY",),
            refused=(("spread", "is not known to NVIDIA's plugin; set allocation.sharedPolicy: spread"),),
            default_text="distributed",
        ),
    ] = None


class GfdFlags(msgspec.Struct, frozen=True, kw_only=True, rename=camel_key):
    """How the node is labelled."""

    oneshot: Annotated[bool, Setting("label once and stop")] = False
    no_timestamp: Annotated[bool, Setting("leave out the label nvidia.com/gfd.timestamp")] = False
    sleep_interval: Annotated[
        Duration, Setting("time between two looks at the labels; infinite: look once", infinite=True)
    ] = build_duration(seconds=60)
    output_file: Annotated[str, Setting("file that labels are written to")] = (
        "/etc/kubernetes/node-feature-discovery/features.d/gfd"
    )
    machine_type_file: Annotated[str, Setting("file that names the machine type, as the plugin sees it")] = (
        "/sys/class/dmi/id/product_name"
    )


class Flags(msgspec.Struct, frozen=True, kw_only=True, rename=camel_key):
    """NVIDIA's general settings. Paths are paths of the host."""

    mig_strategy: Annotated[
        MigStrategy, Setting("how MIG devices are offered", ("mig-strategy",), ("MIG_STRATEGY",))
    ] = MigStrategy.NONE
    fail_on_init_error: Annotated[
        bool,
        Setting(
            "true: not ready while NVML cannot be used; false: ready with nothing to offer, for nodes without GPUs",
            ("fail-on-init-error",),
            ("FAIL_ON_INIT_ERROR",),
        ),
    ] = True
    mps_root: Annotated[
        str,
        Setting(
            "directory of the MPS daemons on the node",
            ("mps-root",),
            ("MPS_ROOT",),
            form=_MPS_ROOT,
            form_text="an absolute path; write one like /run/nvidia/mps",
            default_text="/run/nvidia/mps",
        ),
    ] = ""
    nvidia_driver_root: Annotated[
        str,
        Setting(
            "root of the driver's files",
            ("driver-root", "nvidia-driver-root"),
            ("NVIDIA_DRIVER_ROOT",),
            form=_ROOT,
            form_text=_ROOT_TEXT,
        ),
    ] = "/"
    nvidia_dev_root: Annotated[
        str,
        Setting(
            "what stands before the paths of device nodes",
            ("dev-root", "nvidia-dev-root"),
            ("NVIDIA_DEV_ROOT",),
            form=_ROOT,
            form_text=_ROOT_TEXT,
            default_text="the driver root",
        ),
    ] = ""
    gdrcopy_enabled: Annotated[
        bool, Setting("give containers GPUDirect RDMA copies", ("gdrcopy-enabled",), ("GDRCOPY_ENABLED",))
    ] = False
    gds_enabled: Annotated[bool, Setting("give containers GPUDirect Storage", ("gds-enabled",), ("GDS_ENABLED",))] = (
        False
    )
    mofed_enabled: Annotated[
        bool, Setting("give containers the Mellanox devices", ("mofed-enabled",), ("MOFED_ENABLED",))
    ] = False
    use_node_feature_api: Annotated[bool, Setting("write labels as a NodeFeature object instead of a file")] = True
    device_discovery_strategy: Annotated[
        DeviceDiscoveryStrategy,
        Setting(
            "how GPUs are found: by what is there (auto), by NVML, or as on a Tegra system",
            ("device-discovery-strategy",),
            ("DEVICE_DISCOVERY_STRATEGY",),
        ),
    ] = DeviceDiscoveryStrategy.AUTO
    plugin: Annotated[PluginFlags, Setting("how devices are handed to containers")] = PluginFlags()
    gfd: Annotated[GfdFlags, Setting("how the node is labelled")] = GfdFlags()


class Imex(msgspec.Struct, frozen=True, kw_only=True, rename=camel_key):
    """IMEX channels for containers."""

    channel_ids: Annotated[
        tuple[int, ...],
        Setting(
            "channels to hand over: [] or [0]",
            ("imex-channel-ids",),
            ("IMEX_CHANNEL_IDS",),
            least=0,
            most=0,
            too_small="[] and [0] are possible",
            too_large="[] and [0] are possible",
        ),
    ] = ()
    required: Annotated[
        bool, Setting("do without GPUs rather than without a channel", ("imex-required",), ("IMEX_REQUIRED",))
    ] = False
