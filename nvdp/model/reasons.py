"""The one vocabulary of things that happen: log lines, events, metric labels, readiness and status use these words."""

from __future__ import annotations

import enum


class Level(enum.IntEnum):
    """Severity, with the numbers of the standard library's ``logging``."""

    DEBUG = 10
    INFO = 20
    WARNING = 30
    ERROR = 40


class EventKind(enum.Enum):
    """Whether what happened becomes an event of the Node, by the word of the table in docs/observability.md.

    LASTING is told only if it still is so a minute later.
    """

    NONE = "–"
    NORMAL = "Normal"
    WARNING = "Warning"
    LASTING = "Warning after 60 s"


class Reason(enum.Enum):
    """What happened, and how serious it is. The value is the word, its level, and the event that it makes, if any."""

    STARTING = ("Starting", Level.INFO)
    STOPPED = ("Stopped", Level.INFO)
    DRIVER_READY = ("DriverReady", Level.INFO, EventKind.NORMAL)
    DRIVER_MISSING = ("DriverMissing", Level.WARNING, EventKind.WARNING)
    DRIVER_MISMATCH = ("DriverMismatch", Level.ERROR, EventKind.WARNING)
    DRIVER_LOST = ("DriverLost", Level.ERROR, EventKind.WARNING)
    DRIVER_PAUSED = ("DriverPaused", Level.INFO, EventKind.NORMAL)
    DRIVER_RESUMED = ("DriverResumed", Level.INFO, EventKind.NORMAL)
    DEVICE_ADDED = ("DeviceAdded", Level.INFO, EventKind.NORMAL)
    DEVICE_REMOVED = ("DeviceRemoved", Level.INFO, EventKind.NORMAL)
    DEVICE_UNHEALTHY = ("DeviceUnhealthy", Level.ERROR, EventKind.WARNING)
    DEVICE_RECOVERED = ("DeviceRecovered", Level.INFO, EventKind.NORMAL)
    DEVICE_FLAPPING = ("DeviceFlapping", Level.WARNING, EventKind.WARNING)
    DEVICE_CORDONED = ("DeviceCordoned", Level.INFO, EventKind.NORMAL)
    DEVICE_UNCORDONED = ("DeviceUncordoned", Level.INFO, EventKind.NORMAL)
    DEVICE_NOT_IDLE = ("DeviceNotIdle", Level.WARNING, EventKind.WARNING)
    MIG_LAYOUT_CHANGED = ("MIGLayoutChanged", Level.INFO, EventKind.NORMAL)
    MIG_INVALID = ("MIGInvalid", Level.WARNING, EventKind.WARNING)
    CONFIG_APPLIED = ("ConfigApplied", Level.INFO, EventKind.NORMAL)
    CONFIG_REFUSED = ("ConfigRefused", Level.ERROR, EventKind.WARNING)
    CONFIG_UNKNOWN = ("ConfigUnknown", Level.WARNING, EventKind.WARNING)
    CONFIG_REFERENCE_UNMATCHED = ("ConfigReferenceUnmatched", Level.WARNING)
    CONFIG_MOUNT_STATIC = ("ConfigMountStatic", Level.WARNING, EventKind.WARNING)
    CONFIG_MISSING = ("ConfigMissing", Level.WARNING, EventKind.LASTING)
    CDI_WRITTEN = ("CDIWritten", Level.INFO)
    CDI_FAILED = ("CDIFailed", Level.ERROR, EventKind.WARNING)
    MPS_DAEMON_READY = ("MPSDaemonReady", Level.INFO, EventKind.NORMAL)
    MPS_DAEMON_FAILED = ("MPSDaemonFailed", Level.ERROR, EventKind.WARNING)
    MPS_UNSUPPORTED = ("MPSUnsupported", Level.ERROR, EventKind.WARNING)
    RUNTIME_UNSUITED = ("RuntimeUnsuited", Level.WARNING, EventKind.WARNING)
    MODE_CHANGE_WAITING = ("ModeChangeWaiting", Level.INFO, EventKind.NORMAL)
    MODE_CHANGED = ("ModeChanged", Level.INFO, EventKind.NORMAL)
    RESOURCE_REGISTERED = ("ResourceRegistered", Level.INFO)
    RESOURCE_WITHDRAWN = ("ResourceWithdrawn", Level.INFO)
    REGISTRATION_FAILED = ("RegistrationFailed", Level.WARNING, EventKind.LASTING)
    KUBELET_RESTARTED = ("KubeletRestarted", Level.INFO)
    STREAM_LOST = ("StreamLost", Level.WARNING)
    ALLOCATION_SERVED = ("AllocationServed", Level.INFO)
    ALLOCATION_REFUSED = ("AllocationRefused", Level.WARNING)
    SHARING_UNISOLATED = ("SharingUnisolated", Level.WARNING)
    FEATURE_NOT_BUILT = ("FeatureNotBuilt", Level.WARNING)
    ENTRY_WITHHELD = ("EntryWithheld", Level.WARNING, EventKind.WARNING)
    RESOURCE_EMPTIED = ("ResourceEmptied", Level.WARNING, EventKind.WARNING)
    HOLDERS_UNKNOWN = ("HoldersUnknown", Level.WARNING, EventKind.LASTING)
    STATE_DAMAGED = ("StateDamaged", Level.WARNING)
    WATCH_DEGRADED = ("WatchDegraded", Level.WARNING)
    WATCH_RESTORED = ("WatchRestored", Level.INFO)
    PORT_TAKEN = ("PortTaken", Level.WARNING)
    API_SERVER_LOST = ("APIServerLost", Level.WARNING)
    API_SERVER_REACHED = ("APIServerReached", Level.INFO)
    ALLOCATION_SEEN = ("AllocationSeen", Level.DEBUG)
    LABELS_WRITTEN = ("LabelsWritten", Level.INFO)
    LABELS_FAILED = ("LabelsFailed", Level.WARNING)
    NODE_WRITE_FAILED = ("NodeWriteFailed", Level.WARNING)
    STARTUP_TAINT_REMOVED = ("StartupTaintRemoved", Level.INFO, EventKind.NORMAL)
    SERVICE_RESTARTED = ("ServiceRestarted", Level.ERROR, EventKind.WARNING)

    def __init__(self, word: str, level: Level, event: EventKind = EventKind.NONE) -> None:
        self.word = word
        self.level = level
        self.event = event


class Cause(enum.Enum):
    """Why a device is listed Unhealthy. Part of the same vocabulary: the label ``reason`` of a device's metrics."""

    XID = "XID"
    ECC = "ECC"
    ROW_REMAP_FAILURE = "RowRemapFailure"
    RETIRED_PAGES_PENDING = "RetiredPagesPending"
    RECOVERY_ACTION = "RecoveryAction"
    NODES_MISSING = "NodesMissing"
    CDI_MISSING = "CDIMissing"
    IMEX_MISSING = "IMEXMissing"
    MPS_DAEMON_FAILED = "MPSDaemonFailed"
    FABRIC_DEGRADED = "FabricDegraded"
    LOST = "Lost"
    CALL_FAILED = "CallFailed"
    CALL_TIMEOUT = "CallTimeout"
    DRIVER_LOST = "DriverLost"
    DRIVER_PAUSED = "DriverPaused"
    VANISHED = "Vanished"
    CORDONED = "Cordoned"
    HELD = "Held"
    WITHDRAWING = "Withdrawing"
