"""What to do about what is wrong, as tables: one line for someone whose pods do not start."""

from __future__ import annotations

from typing import Final

from nvdp.model.mps import Phase
from nvdp.model.reasons import Cause, Reason
from nvdp.model.status import DriverState
from nvdp.planning.vitals import NO_ACTION, UNSUPPORTED
from nvdp.planning.xids import CATALOGUE, Advice

HANGS: Final = "the driver hangs: look for NVRM in dmesg on the node, and reboot the node if it stays"
_IN_POD: Final = "in nvdp's pod"  # the image puts no nvdp on the node

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

CONFIG_MISSING: Final = (
    "create it under that name, a file as a key of the ConfigMap; --config-file, --config-map or --config-dir name "
    "another. It is followed by itself"
)
CONFIG_UNKNOWN: Final = (
    "give the node one of the names that there are (kubectl label node NODE --overwrite KEY=NAME), or the ConfigMap an "
    "entry of that name. It is followed by itself"
)
CONFIG_WAITING: Final = "see what keeps the API server from answering (APIServerLost). It is followed by itself"

FILE_PAUSES: Final = "devices.paused"
PAUSE: Final = {
    FILE_PAUSES: "set devices.paused: false in {file} once the work on the driver is done",
    "health.releaseForReset": "reset the GPU now, or wait a minute; nvdp resume ends it at once",
}
"""By the beginning of ``Pause.by``: what ends it."""

PAUSE_ELSE: Final = f"nvdp resume {_IN_POD} once the work on the driver is done"


def find_pause_remedy(by: str, *, file_too: bool) -> str:
    """What ends a pause, with ``{file}`` left open; ``file_too`` is whether the file pauses as well as who did it."""
    text = next((text for origin, text in PAUSE.items() if by.startswith(origin)), PAUSE_ELSE)
    return f"{text}, and {FILE_PAUSES}: false in {{file}}" if file_too else text


_RESET: Final = (
    f"once no pod uses it: nvdp pause {_IN_POD}, nvidia-smi --gpu-reset -i {{index}} on the node, then nvdp resume"
)
_REBOOT: Final = "drain the node and reboot it"
_AGAIN: Final = "; replace the card if that comes again"
_QUERY: Final = "nvidia-smi -q -i {index} on the node shows what the driver asks for"
_BY_ITSELF: Final = (
    "it takes pods again after health.recovery.holdOff without a fault (never, if that is 0s); "
    f"nvdp health clear {{index}} {_IN_POD} does it now"
)
_RESTART: Final = f"restart what caused it; {_BY_ITSELF}"

ACTION: Final = {
    NO_ACTION: _BY_ITSELF,
    "GPUReset": _RESET,
    "NodeReboot": _REBOOT,
    "DrainP2P": "end the pods on the GPUs that are linked with it; the driver then asks for a reset, or for nothing",
    "DrainAndReset": f"let its pods end, they are not in danger; {_RESET}",
    "RecoverIMEXDomain": "restart nvidia-imex on all nodes of its IMEX domain, once no pod of theirs uses it",
    "BusReset": f"{_REBOOT}, which resets the PCIe bus as well",
    "SystemReboot": "drain the node, and switch the whole machine off and on",
    "Unknown": _QUERY,
}
"""By the driver's word for what it asks for; without one, or with ``Unsupported``, the cause counts."""

_PASSES: Final = frozenset({Cause.XID, Cause.ECC, Cause.LOST, Cause.RECOVERY_ACTION})  # over by its "None"
_HEEDS_ACTION: Final = _PASSES | {Cause.FABRIC_DEGRADED, Cause.RETIRED_PAGES_PENDING}

ADVICE: Final = {
    Advice.RESTART_APPLICATION: _RESTART,
    Advice.FOLLOW_OTHER_XID: _RESTART,
    Advice.NOTHING: _BY_ITSELF,
    Advice.WATCH: _BY_ITSELF,
    Advice.READ_RECOVERY_ACTION: _QUERY,
    Advice.RESET_GPU: _RESET,
    Advice.REBOOT: f"{_REBOOT}{_AGAIN}",
    Advice.REBOOT_GUEST: f"{_REBOOT}: the virtual machine is enough",
    Advice.MEMORY_WORKFLOW: f"{_RESET}{_AGAIN}",
    Advice.NVLINK_WORKFLOW: f"nvidia-smi nvlink -e -i {{index}} on the node shows which link; {_RESET}",
    Advice.CHECK_CABLES: "drain the node, switch it off, and see to the card's power cables and to its seat",
    Advice.UPDATE_SOFTWARE: "drain the node, and update the driver and the card's firmware",
    Advice.CHECK_UNIFIED_MEMORY: f"dmesg | grep -i nvrm on the node has the fault of unified memory; {_RESET}",
    Advice.CONTACT_SUPPORT: f"{_RESET}; ask the card's vendor if it comes again",
    Advice.UNSTATED: f"{_RESET}; ask the card's vendor if it comes again",
}
"""By the catalogue's advice for an XID, where the driver does not say what it asks for."""

CDI: Final = "docs/troubleshoot.md#cdifailed has what to do about each of these. It is tried again by itself"
"""Of what the CDI specs lack: the text has why."""

_MPS_LOG: Final = "kubectl logs of nvdp-mps's pod on this node has more"

MPS_AWAY: Final = (
    "is there a pod of the DaemonSet nvdp-mps on this node? kubectl get pods -A -o wide | grep nvdp-mps. "
    f"If there is, {_MPS_LOG}. All comes back by itself once it answers"
)
MPS_UNKNOWN: Final = (
    "a matter of seconds; if it stays, nvdp-mps and nvdp do not have the same configuration file or --state-dir: "
    f"{_MPS_LOG}"
)
MPS: Final = {
    Phase.WAITING: "it comes by itself once they have ended",
    Phase.STARTING: f"a matter of seconds; if it stays, {_MPS_LOG}",
    Phase.FAILED: (
        f"it is started again by itself; {_MPS_LOG}. Containers that used it have lost their CUDA contexts: end those "
        "that do not recover"
    ),
    Phase.REFUSED: "end what is in the way, or take the GPUs out of sharing.mps in {file}; it is tried again by itself",
    Phase.STOPPING: f"a matter of seconds; if it stays, {_MPS_LOG}",
}
"""By the phase of a control daemon that does not answer, where its sentence says no more (``mps_verdicts``)."""

MPS_ELSE: Final = f"{_MPS_LOG}; it is tried again by itself"
MPS_RUNTIME: Final = (
    "give the DaemonSet nvdp-mps the NVIDIA runtime, as its driver's files come by that: runtimeClassName: nvidia, see "
    "docs/mps.md. It is tried again by itself"
)
MPS_PRIVILEGES: Final = (
    "nvdp-mps must be privileged, with its MPS root mounted Bidirectional, as manifests/components/mps has it; "
    f"{_MPS_LOG}"
)
MPS_SILENT: Final = (
    "its containers compute on, and have lost nothing yet: it may answer again. If it does not, it is replaced, which "
    f"ends their CUDA contexts; {_MPS_LOG}"
)
MPS_START: Final = (
    f"it is tried again by itself; {_MPS_LOG}. After an upgrade of the driver its files there are the old ones: delete "
    "that pod"
)
MPS_GPU: Final = (
    "see nvdp devices: the GPU is lost, or gone. It joins the daemon once it is back and no pod has a share"
)
MPS_NO_OPTION: Final = (
    "set multiUser: false in {file} if all pods that share a GPU have the same runAsUser, which this driver needs; a "
    "newer driver serves several users"
)

MPS_KEPT: Final = (
    "it comes by itself then; if it stays: does nvdp-mps run on this node, and is there space in --state-dir? "
    f"{_MPS_LOG}"
)
MPS_PENDING: Final = (
    "new pods on its other GPUs keep the daemon as it is: kubectl cordon the node until they have ended, or drain it; "
    "allocation.modeChange: immediate in {file} restarts it now, which ends what computes there"
)
"""Of what a daemon can do only when it is started anew."""

MPS_FAULT: Final = (
    "it takes new clients once all that it has have ended: a fault of one of them concerns all. dmesg | grep -i nvrm "
    "on the node has what happened; end the pods that hold the resource, if they do not end themselves"
)
MPS_USERS: Final = (
    "take multiUser: false out of the entry in {file}, or give all pods that share the GPU the same runAsUser"
)
MPS_USERS_OF_OLD: Final = (
    "give all pods that share the GPU the same runAsUser: this driver's control daemon does not know multiUser, "
    "a newer one does"
)

DEVICE: Final = {
    Cause.XID: f"look the XID up in NVIDIA's catalogue; {_RESET}",
    Cause.ECC: f"{_RESET}{_AGAIN}",
    Cause.ROW_REMAP_FAILURE: "drain the node and replace the card: its memory has no spare rows left",
    Cause.RETIRED_PAGES_PENDING: _RESET,
    Cause.RECOVERY_ACTION: _QUERY,
    Cause.FABRIC_DEGRADED: (
        "nvidia-smi nvlink -s -i {index} on the node; where it has NVSwitches, systemctl status nvidia-fabricmanager"
    ),
    Cause.LOST: f"{_REBOOT}; if the card is lost again, replace it. Its return is seen by itself",
    Cause.CALL_FAILED: f"nvidia-smi -q -i {{index}} on the node; if that fails too: {_RESET}, or a reboot",
    Cause.CALL_TIMEOUT: f"{HANGS}; the other GPUs work on",
    Cause.VANISHED: (
        "lspci -d 10de: and dmesg on the node; a card that was taken out on purpose leaves the list after "
        "devices.removeAfter"
    ),
    Cause.NODES_MISSING: (
        "nvidia-smi as root on the node makes the device nodes, or nvidia-modprobe; nvidia-persistenced keeps them. "
        "It comes by itself then"
    ),
    Cause.CDI_MISSING: CDI,
    Cause.IMEX_MISSING: (
        "nvidia-modprobe -s -i CHANNEL on the node makes the channel's node, and nvidia-imex must run there; or take "
        "imex.required out of the file"
    ),
    Cause.MPS_DAEMON_FAILED: MPS[Phase.FAILED],
    Cause.CORDONED: "take it out of {path} in {file} to have it back",
    Cause.HELD: "it comes by itself once they have ended",
    Cause.WITHDRAWING: "they leave by themselves once they have ended",
}
"""By the cause of an Unhealthy device. What is the driver's as a whole is in ``DRIVER`` and ``PAUSE``."""


def find_device_remedy(cause: Cause, *, action: str, xid: int | None) -> str:
    """What to do about an Unhealthy device, with ``{index}`` left open.

    The driver's own word counts first, where the cause is one that it can end; then, of an XID, the catalogue's.
    """
    if action == NO_ACTION and cause in _PASSES:
        return ACTION[NO_ACTION]
    if cause is Cause.LOST and action == UNSUPPORTED:
        return _BY_ITSELF  # it was asked: it is back
    if cause in _HEEDS_ACTION and action not in {"", UNSUPPORTED, NO_ACTION}:
        return ACTION.get(action, ACTION["Unknown"])
    if cause is Cause.XID and xid is not None and xid in CATALOGUE:
        return ADVICE[CATALOGUE[xid].advice]
    return DEVICE[cause]


WITHHELD: Final = {
    Reason.MPS_UNSUPPORTED.word: "correct {path} in {file}, or share these GPUs by sharing.timeSlicing, or not at all",
    Reason.MIG_INVALID.word: (
        "see {path} in {file}; on the node nvidia-smi mig -lgi shows how GPUs are cut, -lgip the profiles, "
        "nvidia-smi mig -cgi PROFILE -C -i GPU cuts one. A change is seen by itself"
    ),
    "NameUnknown": 'nvidia-smi -q on the node; the pattern "*" alone in {path} depends on no name',
    "ListTooLarge": "fewer replicas at {path} in {file}",
}
"""By ``Withheld.reason``."""

WITHHELD_ELSE: Final = "correct {path} in {file}; the rest of the file works"

PENDING: Final = (
    f"it needs a GPU reset: nvdp pause {_IN_POD}, nvidia-smi --gpu-reset -i {{index}} on the node once no pod uses it, "
    "nvdp resume"
)
"""Of a GPU whose MIG mode will be another one."""

RENUMBERED: Final = (
    "a container of these pods that restarts gets the GPU that has the index now; deviceIDStrategy: uuid knows no such "
    "trouble. All comes back by itself once they have ended"
)
"""Of a GPU that takes no new pods for its index."""

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
    Reason.CDI_FAILED.word: CDI,
    Reason.LABELS_FAILED.word: (
        "put right what it says: a right that is missing comes with the component of --write-labels; "
        "docs/troubleshoot.md#labelsfailed has more. Tried again by itself, and no GPU is offered less for it"
    ),
    Reason.NODE_WRITE_FAILED.word: (
        "put right what it says: a right that is missing comes with the component of the feature, and what may be "
        "written to the Node stands in the ConfigMap nvdp-node-writes; docs/troubleshoot.md#nodewritefailed has more. "
        "Tried again by itself, and no GPU is offered less for it"
    ),
    Reason.API_SERVER_LOST.word: (
        "a right that is missing comes with the component of the feature, see docs/cluster.md; else see to the API "
        "server, and to the way there from the pod. It is asked again by itself"
    ),
    Reason.CONFIG_MOUNT_STATIC.word: "mount the ConfigMap as a directory, without subPath",
    Reason.SERVICE_RESTARTED.word: "a defect of nvdp: please report its log's line ServiceRestarted, with its trace",
}
"""By ``Trouble.reason``, where the trouble itself does not say."""
