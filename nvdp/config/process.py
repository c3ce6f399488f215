"""Options of the process that no file can give: they are fixed at its start."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final

from nvdp.config.cluster import ClusterOptions
from nvdp.config.keys import Setting, camel_key
from nvdp.config.schema import Origin
from nvdp.model.duration import Duration, build_duration
from nvdp.model.quantity import Quantity

KUBELET_ROOT: Final = Path("/var/lib/kubelet")
CDI_DIR: Final = Path("/var/run/cdi")
HOST_DEV: Final = Path("/host-dev")
HOST_ETC: Final = Path("/host-etc")
MPS_DIR: Final = Path("/mps")
_PORT_MOST: Final = 65535


class LogFormat(enum.Enum):
    TEXT = "text"
    JSON = "json"


class LogLevel(enum.Enum):
    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class ProcessOptions(ClusterOptions, frozen=True, kw_only=True, rename=camel_key):
    """Options of ``nvdp run`` besides those that are keys of the file. All paths are as the process sees them.

    ``origins`` tells, by flag without dashes, where each value came from.
    """

    config_file: Annotated[Path | None, Setting("the file to follow", ("config-file",), ("CONFIG_FILE",))] = None
    kubelet_root: Annotated[
        Path,
        Setting(
            "moves the socket directory and pod-resources, unless these are given",
            ("kubelet-root",),
            ("NVDP_KUBELET_ROOT",),
        ),
    ] = KUBELET_ROOT
    kubelet_socket: Annotated[
        Path,
        Setting("the kubelet's socket; our own sockets are made beside it", ("kubelet-socket",), ("KUBELET_SOCKET",)),
    ] = KUBELET_ROOT / "device-plugins" / "kubelet.sock"
    pod_resources_socket: Annotated[
        Path,
        Setting(
            "where the kubelet says which pod holds what; follows --kubelet-socket",
            ("pod-resources-socket",),
            ("NVDP_POD_RESOURCES_SOCKET",),
        ),
    ] = KUBELET_ROOT / "pod-resources" / "kubelet.sock"
    state_dir: Annotated[Path, Setting("directory of what outlives a restart", ("state-dir",), ("NVDP_STATE_DIR",))] = (
        Path("/var/lib/nvdp")
    )
    run_dir: Annotated[Path, Setting("directory of what outlives no reboot", ("run-dir",), ("NVDP_RUN_DIR",))] = Path(
        "/run/nvdp"
    )
    cdi_dir: Annotated[Path, Setting("directory of the CDI specs", ("cdi-dir",), ("NVDP_CDI_DIR",))] = CDI_DIR
    host_dev: Annotated[
        Path,
        Setting(
            "where the node's /dev is mounted, to see which device nodes there are",
            ("host-dev",),
            ("NVDP_HOST_DEV",),
        ),
    ] = HOST_DEV
    host_etc: Annotated[
        Path,
        Setting(
            "where directories of the node's /etc are mounted, to see how container runtimes are configured",
            ("host-etc",),
            ("NVDP_HOST_ETC",),
        ),
    ] = HOST_ETC
    mps_dir: Annotated[
        Path,
        Setting(
            "where the node's flags.mpsRoot is mounted",
            ("mps-dir",),
            ("NVDP_MPS_DIR",),
        ),
    ] = MPS_DIR
    mps_control: Annotated[
        str,
        Setting("the program that controls MPS, for nvdp mps", ("mps-control",), ("NVDP_MPS_CONTROL",)),
    ] = "nvidia-cuda-mps-control"
    mps_shm_size: Annotated[
        Quantity | None,
        Setting(
            "size of the /dev/shm of MPS and its clients",
            ("mps-shm-size",),
            ("NVDP_MPS_SHM_SIZE",),
            least=Quantity(2**20),
            default_text="half of the node's memory",
        ),
    ] = None
    metrics_port: Annotated[
        int,
        Setting(
            "port of /metrics and the probes; 0: off; of nvdp mps, which has probes only, it is 9403 by default",
            ("metrics-port",),
            ("NVDP_METRICS_PORT",),
            least=0,
            most=_PORT_MOST,
        ),
    ] = 9402
    log_format: Annotated[
        LogFormat | None,
        Setting(
            "text or json",
            ("log-format",),
            ("NVDP_LOG_FORMAT",),
            default_text="text on a terminal, json otherwise",
        ),
    ] = None
    log_level: Annotated[LogLevel, Setting("the least level that is logged", ("log-level",), ("NVDP_LOG_LEVEL",))] = (
        LogLevel.INFO
    )
    log_allocations: Annotated[
        bool, Setting("log each allocation; refusals always are", ("log-allocations",), ("NVDP_LOG_ALLOCATIONS",))
    ] = True
    apply_jitter: Annotated[
        Duration,
        Setting(
            "wait up to this long, by chance, before a valid edit is applied", ("apply-jitter",), ("NVDP_APPLY_JITTER",)
        ),
    ] = build_duration(seconds=0)
    cdi_feature_flags: Annotated[
        tuple[str, ...], Setting("features of the CDI files", ("cdi-feature-flags",), ("CDI_FEATURE_FLAGS",))
    ] = ()
    cdi_disable_hooks: Annotated[
        tuple[str, ...],
        Setting("hooks to leave out of the CDI files, or all", ("cdi-disable-hooks",), ("CDI_DISABLE_HOOKS",)),
    ] = ()
    simulated_node: Annotated[
        Path | None,
        Setting(
            "try nvdp without a GPU: NVML is simulated from this node file",
            ("simulated-node",),
            ("NVDP_SIMULATED_NODE",),
            hidden=True,
        ),
    ] = None
    origins: Mapping[str, Origin] = {}
