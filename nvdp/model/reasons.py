"""The one vocabulary of things that happen: log lines, events, metric labels, readiness and status use these words."""

from __future__ import annotations

import enum


class Level(enum.IntEnum):
    """Severity, with the numbers of the standard library's ``logging``."""

    DEBUG = 10
    INFO = 20
    WARNING = 30
    ERROR = 40


class Reason(enum.Enum):
    """What happened, and how serious it is. The value is the word and its level."""

    STARTING = ("Starting", Level.INFO)
    STOPPED = ("Stopped", Level.INFO)
    DRIVER_READY = ("DriverReady", Level.INFO)
    DRIVER_MISSING = ("DriverMissing", Level.WARNING)
    DRIVER_MISMATCH = ("DriverMismatch", Level.ERROR)
    DRIVER_LOST = ("DriverLost", Level.ERROR)
    DRIVER_PAUSED = ("DriverPaused", Level.INFO)
    DRIVER_RESUMED = ("DriverResumed", Level.INFO)
    DEVICE_ADDED = ("DeviceAdded", Level.INFO)
    DEVICE_REMOVED = ("DeviceRemoved", Level.INFO)
    DEVICE_UNHEALTHY = ("DeviceUnhealthy", Level.ERROR)
    DEVICE_RECOVERED = ("DeviceRecovered", Level.INFO)
    DEVICE_FLAPPING = ("DeviceFlapping", Level.WARNING)
    DEVICE_CORDONED = ("DeviceCordoned", Level.INFO)
    DEVICE_UNCORDONED = ("DeviceUncordoned", Level.INFO)
    DEVICE_NOT_IDLE = ("DeviceNotIdle", Level.WARNING)
    MIG_LAYOUT_CHANGED = ("MIGLayoutChanged", Level.INFO)
    MIG_INVALID = ("MIGInvalid", Level.WARNING)
    CONFIG_APPLIED = ("ConfigApplied", Level.INFO)
    CONFIG_REFUSED = ("ConfigRefused", Level.ERROR)
    CONFIG_REFERENCE_UNMATCHED = ("ConfigReferenceUnmatched", Level.WARNING)
    CONFIG_MOUNT_STATIC = ("ConfigMountStatic", Level.WARNING)
    CONFIG_MISSING = ("ConfigMissing", Level.WARNING)
    CDI_WRITTEN = ("CDIWritten", Level.INFO)
    CDI_FAILED = ("CDIFailed", Level.ERROR)
    MPS_DAEMON_READY = ("MPSDaemonReady", Level.INFO)
    MPS_DAEMON_FAILED = ("MPSDaemonFailed", Level.ERROR)
    MPS_UNSUPPORTED = ("MPSUnsupported", Level.ERROR)
    RUNTIME_UNSUITED = ("RuntimeUnsuited", Level.WARNING)
    MODE_CHANGE_WAITING = ("ModeChangeWaiting", Level.INFO)
    MODE_CHANGED = ("ModeChanged", Level.INFO)
    RESOURCE_REGISTERED = ("ResourceRegistered", Level.INFO)
    RESOURCE_WITHDRAWN = ("ResourceWithdrawn", Level.INFO)
    REGISTRATION_FAILED = ("RegistrationFailed", Level.WARNING)
    KUBELET_RESTARTED = ("KubeletRestarted", Level.INFO)
    STREAM_LOST = ("StreamLost", Level.WARNING)
    ALLOCATION_SERVED = ("AllocationServed", Level.INFO)
    ALLOCATION_REFUSED = ("AllocationRefused", Level.WARNING)
    SHARING_UNISOLATED = ("SharingUnisolated", Level.WARNING)
    FEATURE_NOT_BUILT = ("FeatureNotBuilt", Level.WARNING)
    ENTRY_WITHHELD = ("EntryWithheld", Level.WARNING)
    RESOURCE_EMPTIED = ("ResourceEmptied", Level.WARNING)
    HOLDERS_UNKNOWN = ("HoldersUnknown", Level.WARNING)
    STATE_DAMAGED = ("StateDamaged", Level.WARNING)
    WATCH_DEGRADED = ("WatchDegraded", Level.WARNING)
    PORT_TAKEN = ("PortTaken", Level.WARNING)
    ALLOCATION_SEEN = ("AllocationSeen", Level.DEBUG)
    SERVICE_RESTARTED = ("ServiceRestarted", Level.ERROR)

    def __init__(self, word: str, level: Level) -> None:
        self.word = word
        self.level = level


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
