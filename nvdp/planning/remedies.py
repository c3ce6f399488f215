"""What to do about what is wrong, as tables: one line for someone whose pods do not start."""

from __future__ import annotations

from typing import Final

from nvdp.model.reasons import Cause, Reason
from nvdp.model.status import DriverState

HANGS: Final = "the driver hangs: look for NVRM in dmesg on the node, and reboot the node if it stays"

DRIVER: Final = {
    DriverState.MISSING: (
        "if nvidia-smi fails on the node too, install the driver; else the container was not given it: "
        "runtimeClassName: nvidia, or the privileged overlay with NVIDIA_DRIVER_ROOT. Tried again by itself"
    ),
    DriverState.MISMATCH: (
        "drain the node and reload the kernel module, or reboot; pods that run go on, new CUDA programs fail until then"
    ),
    DriverState.LOST: (
        "dmesg | grep -i -e nvrm -e xid on the node; pods that run are left alone, and all comes back by itself once "
        "the driver answers; if it does not, reboot the node"
    ),
}
DRIVER_ERRORS: Final = {
    "CallTimeout": HANGS,
    "ChildDied": "run nvidia-smi on the node: if that crashes too, reinstall the driver; else please report the log",
}
"""By ``DriverStatus.error``, before the state is looked at."""

DEVICE: Final = {
    Cause.LOST: "drain the node and reboot it; if the card is lost again, replace it. Its return is seen by itself",
    Cause.CALL_TIMEOUT: f"{HANGS}; the other GPUs work on",
    Cause.VANISHED: (
        "lspci -d 10de: and dmesg on the node; a card that was taken out on purpose leaves the list after "
        "devices.removeAfter"
    ),
}
"""By the cause of an Unhealthy device."""

DEVICE_ELSE: Final = (
    "nvidia-smi -q -i {index} on the node; a reset (nvidia-smi -r -i {index}) once no pod uses it, or a reboot"
)

WITHHELD: Final = {
    "NotBuilt": "this version cannot do that: take {path} out of {file}, and these GPUs are on offer again",
    "Unsupported": "this version cannot do that: take {path} out of {file}, or turn MIG off on these GPUs",
    "NameUnknown": 'nvidia-smi -q on the node; the pattern "*" alone in {path} depends on no name',
    "ListTooLarge": "fewer replicas at {path} in {file}",
}
"""By ``Withheld.reason``."""

WITHHELD_ELSE: Final = "correct {path} in {file}; the rest of the file works"

REGISTRATION: Final = (
    (
        "no such socket",
        "start the kubelet; if it runs, its directory is another one: set --kubelet-root, and mount that directory",
    ),
    ("no such directory", "mount the kubelet's device-plugins directory; one that is elsewhere, with --kubelet-root"),
    ("nobody listens", "start the kubelet: journalctl -u kubelet on the node says why it does not run"),
    (
        "the kubelet refuses",
        "journalctl -u kubelet | grep -i device on the node has its side. Tried again by itself",
    ),
    ("permission", "run nvdp as uid 0; where SELinux is on, let its container connect there"),
    (
        "ListAndWatch",
        "journalctl -u kubelet on the node; another plugin for it? kubectl get pods -A | grep -i device-plugin",
    ),
)
"""By a part of what a resource is missing, in the words of ``services.registrar`` and ``kubelet.registration``."""

REGISTRATION_ELSE: Final = "usually a matter of seconds; if it stays, journalctl -u kubelet on the node"

TROUBLE: Final = {
    Reason.HOLDERS_UNKNOWN.word: (
        "mount the kubelet's pod-resources directory, see --pod-resources-socket; meanwhile nothing leaves a list "
        "before devices.removeAfter, and no GPU changes its form"
    ),
    Reason.PORT_TAKEN.word: "ss -ltnp on the node shows who has it; it is tried again by itself",
    Reason.WATCH_DEGRADED.word: "raise fs.inotify.max_user_instances and fs.inotify.max_user_watches on the node",
    Reason.STATE_DAMAGED.word: "space and permissions of --state-dir: df -h; it is tried again by itself",
    Reason.CONFIG_MOUNT_STATIC.word: "mount the ConfigMap as a directory, without subPath",
    Reason.SERVICE_RESTARTED.word: "a defect of nvdp: please report its log's line ServiceRestarted, with its trace",
}
"""By ``Trouble.reason``, where the trouble itself does not say."""
