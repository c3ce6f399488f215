"""Files that mean something else to NVIDIA's plugin, for every way in which they may, and what is said of each."""

from __future__ import annotations

from typing import NamedTuple

UUID = "4cf8db2d-06c0-7d70-1a51-e59b25b2c16c"


def sliced(entry: str, *, block: str = "") -> str:
    """A file whose one entry begins at 3:17, in a block that may say more."""
    return f"sharing:\n  timeSlicing:\n    resources: [{{{entry}}}]\n{block}"


def mps(entry: str, *, block: str = "") -> str:
    return f"sharing:\n  mps:\n    resources: [{{{entry}}}]\n{block}"


class Example(NamedTuple):
    text: str
    place: str  # LINE:COLUMN: EFFECT: PATH
    meaning: str  # what goes on after "NVIDIA's plugin "


EXAMPLES = (
    Example("devices: {exclude: [0]}", "1:20: dangerous: devices.exclude", "ignores it and hands these devices out"),
    Example(
        "devices: {cordon: [0]}", "1:19: dangerous: devices.cordon", "ignores it and gives these devices to new pods"
    ),
    Example(
        "devices: {paused: true}",
        "1:19: dangerous: devices.paused",
        "ignores it, opens the driver and hands all devices out",
    ),
    Example(
        "devices: {rescanInterval: 10s}",
        "1:27: note: devices.rescanInterval",
        "ignores it and looks for devices only at its start",
    ),
    Example(
        "devices: {removeAfter: 5m}",
        "1:24: note: devices.removeAfter",
        "ignores it and lists a vanished GPU until its next start",
    ),
    Example(
        'resources: {gpus: [{pattern: "*A100*", name: a100}]}',
        "1:46: dangerous: resources.gpus[0].name",
        "throws it away and offers these GPUs as nvidia.com/gpu",
    ),
    Example(
        'flags: {migStrategy: mixed}\nresources: {mig: [{pattern: "1g.*", name: mig-small}]}',
        "2:43: dangerous: resources.mig[0].name",
        "throws it away and offers these MIG devices under their default names",
    ),
    Example(
        "flags: {migStrategy: single}\nresources: {mig: [{pattern: 1g.10gb, name: mig-1g.10gb}]}",
        "2:44: dangerous: resources.mig[0].name",
        "throws it away and offers these MIG devices under their default names",
    ),
    Example(
        "resources: {mig: [{pattern: 1g.10gb, name: mig-1g.10gb}]}",
        "1:44: note: resources.mig[0].name",
        "throws it away, which matters once it offers MIG devices",
    ),
    Example(
        sliced("name: nvidia.com/gpu, rename: example.com/gpu.shared, replicas: 2"),
        "3:48: dangerous: sharing.timeSlicing.resources[0].rename",
        "does not start: a name there is nvidia.com/ and lower-case letters, digits, - or .; "
        '"example.com/gpu.shared" is not',
    ),
    Example(
        mps("name: nvidia.com/GPU_a, replicas: 2"),
        "3:24: dangerous: sharing.mps.resources[0].name",
        'does not start: a name there is nvidia.com/ and lower-case letters, digits, - or .; "nvidia.com/GPU_a" is not',
    ),
    Example(
        "resources: {gpus: [{pattern: 5090, name: nvidia.com/gpu}]}",
        "1:30: dangerous: resources.gpus[0].pattern",
        'does not start: an unquoted number or boolean is no text there; 5090 is a number; write "5090"',
    ),
    Example(
        sliced("name: 5090, replicas: 2"),
        "3:24: dangerous: sharing.timeSlicing.resources[0].name",
        'does not start: an unquoted number or boolean is no text there; 5090 is a number; write "5090"',
    ),
    Example(
        sliced("name: gpu, rename: y, replicas: 2"),
        "3:37: dangerous: sharing.timeSlicing.resources[0].rename",
        'does not start: an unquoted number or boolean is no text there; y is a boolean; write "y"',
    ),
    Example(
        sliced("name: gpu, replicas: 2")
        + "  mps: {resources: [{name: gpu, rename: gpu.mps, devices: [0], replicas: 2}]}",
        "3:5: dangerous: sharing.timeSlicing",
        "ignores all of it, because sharing.mps is there as well",
    ),
    Example(
        mps("name: mig-1g.10gb, replicas: 2"),
        "3:16: dangerous: sharing.mps.resources",
        "offers nothing: it waits for an MPS daemon for nvidia.com/gpu, for which there is no entry",
    ),
    Example(
        sliced("name: a100, replicas: 2") + 'resources: {gpus: [{pattern: "*A100*", name: a100}]}',
        "3:24: dangerous: sharing.timeSlicing.resources[0].name",
        "has no resource of this name, so that the entry shares nothing",
    ),
    Example(
        sliced("name: gpu, rename: gpu.shared, replicas: 2"),
        "3:37: dangerous: sharing.timeSlicing.resources[0].rename",
        "throws it away; these devices are nvidia.com/gpu; with renameByDefault: true they are nvidia.com/gpu.shared "
        "there too",
    ),
    Example(
        mps("name: gpu, rename: gpu.mps, replicas: 2", block="    renameByDefault: true"),
        "3:37: dangerous: sharing.mps.resources[0].rename",
        "throws it away; these devices are nvidia.com/gpu.shared",
    ),
    Example(
        sliced("name: gpu, rename: , replicas: 2"),
        "3:37: dangerous: sharing.timeSlicing.resources[0].rename",
        "does not start: with nothing after it, the key is an error there; remove it",
    ),
    Example(
        sliced("name: gpu, rename: gpu.shared, devices: 3, replicas: 2", block="    renameByDefault: true"),
        "3:58: dangerous: sharing.timeSlicing.resources[0].devices",
        "throws it away and shares all devices of this name",
    ),
    Example(
        mps(f"name: gpu, rename: gpu.shared, devices: [0, GPU-{UUID}], replicas: 2", block="    renameByDefault: true"),
        "3:58: dangerous: sharing.mps.resources[0].devices",
        "throws it away and shares all devices of this name",
    ),
    Example(
        sliced('name: gpu, rename: s, devices: ["0000:65:00.0"], replicas: 2'),
        "3:50: dangerous: sharing.timeSlicing.resources[0].devices[0]",
        'does not start: a device there is an index, "GPU:INSTANCE", or a UUID that begins with GPU- or MIG-; '
        '"0000:65:00.0" is not',
    ),
    Example(
        sliced(f"name: gpu, rename: s, devices: [1, gpu-{UUID}], replicas: 2"),
        "3:53: dangerous: sharing.timeSlicing.resources[0].devices[1]",
        'does not start: a device there is an index, "GPU:INSTANCE", or a UUID that begins with GPU- or MIG-; '
        f'"gpu-{UUID}" is not',
    ),
    Example(
        sliced("name: gpu, replicas: 1"),
        "3:39: dangerous: sharing.timeSlicing.resources[0].replicas",
        "does not start: 2 replicas are the least; leave the entry out",
    ),
    Example(
        mps("name: gpu, replicas: 60"),
        "3:39: dangerous: sharing.mps.resources[0].replicas",
        "offers nothing: its MPS daemon does not start for more than 48 replicas",
    ),
    Example(
        sliced("name: gpu, replicas: 2", block="    requireDistinctGPUs: true"),
        "4:26: note: sharing.timeSlicing.requireDistinctGPUs",
        "ignores it: a container that asks for several may get one GPU several times",
    ),
    Example(
        mps("name: gpu, replicas: 2", block="    failRequestsGreaterThanOne: false"),
        "4:33: note: sharing.mps.failRequestsGreaterThanOne",
        "gives a container replicas of several GPUs as well",
    ),
    Example(
        mps("name: gpu, replicas: 3, defaultActiveThreadPercentage: 50"),
        "3:73: note: sharing.mps.resources[0].defaultActiveThreadPercentage",
        "ignores it: each client gets 100 / replicas percent",
    ),
    *(
        Example(
            mps(f"name: gpu, replicas: 3, {key}: {value}"),
            f"3:{44 + len(key)}: note: sharing.mps.resources[0].{key}",
            "ignores it: each client gets the GPU's memory / replicas",
        )
        for key, value in (
            ("defaultPinnedDeviceMemoryLimit", "18Gi"),
            ("defaultPerDevicePinnedMemoryLimit", "{0: 20Gi}"),
            ("memoryOvercommitPercentage", "150"),
        )
    ),
    Example(
        mps("name: gpu, replicas: 3, multiUser: true"),
        "3:53: note: sharing.mps.resources[0].multiUser",
        "ignores it: pods of another user wait until those of the first are gone",
    ),
    Example(
        mps("name: gpu, replicas: 2") + "flags: {migStrategy: mixed}",
        "4:22: dangerous: flags.migStrategy",
        "does not start: mixed and MPS exclude each other there",
    ),
    Example(
        mps("name: gpu, replicas: 2") + "flags: {migStrategy: single}",
        "4:22: dangerous: flags.migStrategy",
        "does not start on a node with MIG devices, which it cannot share through MPS",
    ),
    Example(
        "flags: {failOnInitError: true}",
        "1:26: note: flags.failOnInitError",
        "exits while NVML cannot be used, where nvdp waits and is not ready",
    ),
    Example(
        "flags: {failOnInitError: false, plugin: {deviceListStrategy: [envvar, cdi-cri]}}",
        "1:26: note: flags.failOnInitError",
        "exits all the same where NVML is missing, because deviceListStrategy asks for CDI",
    ),
    Example(
        "flags: {plugin: {deviceListStrategy: [cdi-annotations, cdi-cri]}}",
        "1:38: note: flags.plugin.deviceListStrategy",
        "sends both kinds of CDI, so that devices are injected twice",
    ),
    Example(
        "flags: {gfd: {sleepInterval: 60}}",
        "1:30: note: flags.gfd.sleepInterval",
        "reads a bare number as nanoseconds; write 1m",
    ),
    Example(
        'flags: {gfd: {sleepInterval: "60"}}',
        "1:30: dangerous: flags.gfd.sleepInterval",
        "does not start: a quoted number lacks its unit there; write 1m",
    ),
    Example(
        "flags: {gfd: {outputFile: no}}",
        "1:27: note: flags.gfd.outputFile",
        'reads an unquoted number or boolean as such and spells it anew; no is a boolean; write "no"',
    ),
    Example(
        "flags: {gfd: {machineTypeFile: 010}}",
        "1:32: note: flags.gfd.machineTypeFile",
        'reads an unquoted number or boolean as such and spells it anew; 010 is a number; write "010"',
    ),
    Example("imex: {channelIDs: [0, 0]}", "1:20: dangerous: imex.channelIDs", "does not start: it takes [] or [0]"),
    Example(
        "imex: {channelIDs: [0], required: true}",
        "1:35: note: imex.required",
        "exits while the channel is missing, where nvdp lists its devices Unhealthy",
    ),
    Example(
        "allocation: {sharedPolicy: packed}",
        "1:28: note: allocation.sharedPolicy",
        "ignores it and distributes; flags.plugin.sharedDevicesAllocationPolicy: packed means it to both",
    ),
    Example(
        "allocation: {sharedPolicy: spread}",
        "1:28: note: allocation.sharedPolicy",
        "ignores it and distributes",
    ),
    Example(
        "allocation: {numaHints: false}",
        "1:25: note: allocation.numaHints",
        "ignores it and tells the kubelet NUMA nodes",
    ),
    Example(
        "allocation: {modeChange: when-free}",
        "1:26: note: allocation.modeChange",
        "ignores it: an edit counts from its next start, whatever pods hold",
    ),
    Example(
        "allocation: {preStartCheck: idle}",
        "1:29: note: allocation.preStartCheck",
        "ignores it and lets containers start beside foreign processes",
    ),
    Example(
        "allocation: {preStartTimeout: 5s, preStartCheck: idle}",
        "1:31: note: allocation.preStartTimeout",
        "ignores it, as it does the check before a start",
    ),
    Example(
        "health: {profile: catalog}",
        "1:19: note: health.profile",
        "ignores it: every XID but 13, 31, 43, 45, 68, 109 makes a device Unhealthy",
    ),
    Example(
        "health: {ignoredXIDs: [13, 94]}",
        "1:23: note: health.ignoredXIDs",
        "ignores it and takes XIDs from its environment only; set DP_DISABLE_HEALTHCHECKS=13,94 for its container",
    ),
    Example(
        "health: {ignoredXIDs: all}",
        "1:23: note: health.ignoredXIDs",
        "ignores it and takes XIDs from its environment only; set DP_DISABLE_HEALTHCHECKS=all for its container",
    ),
    Example(
        "health: {fatalXIDs: [31]}",
        "1:21: note: health.fatalXIDs",
        "ignores it and takes XIDs from its environment only; set DP_ENABLE_HEALTHCHECKS=31 for its container",
    ),
    Example(
        "health: {callTimeout: 5s}",
        "1:23: note: health.callTimeout",
        "ignores it: a call that hangs holds everything up",
    ),
    Example(
        "health: {releaseForReset: true}",
        "1:27: note: health.releaseForReset",
        "ignores it and never lets go of the driver",
    ),
    *(
        Example(
            f"health: {{recovery: {{{key}: {value}}}}}",
            f"1:{23 + len(key)}: note: health.recovery.{key}",
            "ignores it: what is Unhealthy stays so until its next start",
        )
        for key, value in (("holdOff", "2m"), ("maxHoldOff", "2h"), ("withoutRecoveryAction", "probes"))
    ),
)
