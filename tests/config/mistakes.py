"""The mistakes that configuration.md lists: for each row a file that makes it, and the line that it must give.

``row`` is the first column as it stands in the table. A file without a line is accepted. Mistakes that only the
hardware shows come with the cards of the node.
"""

from __future__ import annotations

from typing import NamedTuple

from nvdp.model.inventory import Driver, Gpu, MigMode

LONG = "nvidia.com/" + "x" * 48


class Mistake(NamedTuple):
    row: str
    text: str
    line: str = ""
    warning: bool = False


class NodeMistake(NamedTuple):
    """``reason`` is the word of observability.md under which the line is told; empty if only ``nvdp plan`` tells it."""

    row: str
    text: str
    gpus: tuple[Gpu, ...]
    reason: str
    line: str
    driver: Driver = Driver(version="550.54.15", cuda_version="12.4")


def _shared(entry: str, block: str = "timeSlicing") -> str:
    """A file whose one entry begins at 5:7."""
    return f"version: v1\nsharing:\n  {block}:\n    resources:\n    - name: nvidia.com/gpu\n{entry}"


MISTAKES = (
    Mistake(
        "`flags: {renameByDefault: true}`",
        "flags: {renameByDefault: true}",
        "f:1:9: flags.renameByDefault: unknown key; it belongs to sharing.timeSlicing.renameByDefault",
    ),
    Mistake(
        "`migstrategy: mixed`",
        "flags:\n  migstrategy: mixed\n",
        "f:2:3: flags.migstrategy: unknown key; did you mean migStrategy? (case counts)",
    ),
    Mistake(
        "`health: {ignoreXids: [94]}`",
        "health: {ignoreXids: [94]}",
        "f:1:10: health.ignoreXids: unknown key; did you mean ignoredXIDs?",
    ),
    Mistake(
        "`devices: {exclude: [1:0]}`",
        "devices: {exclude: [1:0]}",
        'f:1:21: devices.exclude[0]: 1:0 reads as a base-60 number in YAML; quote it: "1:0"',
    ),
    Mistake(
        "`exclude: [GPU-UUID]`",
        "devices:\n  exclude: [GPU-UUID]\n",
        'f:2:13: devices.exclude[0]: "GPU-UUID" is not a device; use an index, "GPU:INSTANCE", a GPU-… or MIG-… '
        'UUID, or a PCI address like "0000:65:00.0"',
    ),
    Mistake("`exclude: 3`", "devices:\n  exclude: 3\n", "f:2:12: devices.exclude: a list is needed: [3]"),
    Mistake(
        "one card in `exclude` and `cordon`",
        'devices:\n  exclude:\n  - "0000:65:00.0"\n  cordon:\n  - "00000000:65:00.0"\n',
        "f:5:5: devices.cordon[0]: 0000:65:00.0 is also excluded (line 3); an excluded device cannot be cordoned",
    ),
    Mistake(
        '`replicas: 0` / `"4"`',
        _shared("      replicas: 0\n"),
        "f:6:17: sharing.timeSlicing.resources[0].replicas: 0 is too small; 1 means unshared",
    ),
    Mistake(
        '`replicas: 0` / `"4"`',
        _shared('      replicas: "4"\n'),
        'f:6:17: sharing.timeSlicing.resources[0].replicas: "4" is text; write 4',
    ),
    Mistake("no `replicas`", _shared(""), "f:5:7: sharing.timeSlicing.resources[0]: replicas is missing"),
    Mistake(
        "`timeSlicing: {}`",
        "sharing:\n  timeSlicing: {}\n",
        "f:2:16: sharing.timeSlicing: resources is missing; remove the block to share nothing",
    ),
    Mistake(
        "card in two entries",
        "sharing:\n  timeSlicing:\n    resources:\n"
        "    - {name: gpu, rename: gpu.shared, devices: [5, 6], replicas: 2}\n"
        '  mps:\n    resources:\n    - {name: gpu, rename: gpu.mps, devices: ["6"], replicas: 2}\n',
        "f:7:46: sharing.mps.resources[0].devices[0]: 6 is already shared by sharing.timeSlicing.resources[0] "
        "(line 4); one card can be shared in one way only",
    ),
    Mistake(
        "time-slicing `all` and MPS `all` for one name",
        "sharing:\n  timeSlicing:\n    resources:\n    - {name: gpu, replicas: 2}\n"
        "  mps:\n    resources:\n    - {name: nvidia.com/gpu, devices: all, replicas: 2}\n",
        "f:7:39: sharing.mps.resources[0].devices: all of nvidia.com/gpu are already shared by "
        "sharing.timeSlicing.resources[0] (line 4); list the devices in one of them",
    ),
    Mistake(
        "`devices: [4, 5]` without `rename`",
        _shared("      devices: [4, 5]\n      replicas: 10\n"),
        "f:5:7: sharing.timeSlicing.resources[0]: nvidia.com/gpu would be a whole GPU on some devices and a tenth "
        "on 2 others; add rename: nvidia.com/gpu.shared, or devices: all",
    ),
    Mistake(
        "MPS and time-slicing under one name",
        "sharing:\n  timeSlicing:\n    resources:\n    - {name: gpu, rename: gpu.shared, devices: [5], replicas: 2}\n"
        "  mps:\n    resources:\n    - {name: gpu, rename: gpu.shared, devices: [6], replicas: 2}\n",
        "f:7:27: sharing.mps.resources[0].rename: nvidia.com/gpu.shared is time-sliced at line 4; choose another name",
    ),
    Mistake(
        "two `multiUser` for one name under MPS",
        "sharing:\n  mps:\n    resources:\n    - {name: gpu, rename: m, devices: [5], replicas: 2}\n"
        "    - {name: gpu, rename: m, devices: [6], replicas: 2, multiUser: false}\n",
        "f:5:68: sharing.mps.resources[1].multiUser: nvidia.com/m has one control daemon, and sharing.mps.resources[0] "
        "(line 4) says true; say the same in both, or rename one",
    ),
    Mistake(
        "`rename: nvdp.json/gpu` under MPS",
        _shared("      rename: nvdp.json/gpu\n      replicas: 2\n", "mps"),
        "f:6:15: sharing.mps.resources[0].rename: nvdp.json/gpu would be in the way of nvdp.json, which nvdp keeps in "
        "the MPS root; use another name before the slash",
    ),
    Mistake(
        "`mpsRoot: ../mps`",
        "flags:\n  mpsRoot: ../mps\n",
        'f:2:12: flags.mpsRoot: "../mps" is not an absolute path; write one like /run/nvidia/mps',
    ),
    Mistake(
        "`replicas: 1` under MPS on some cards, without `rename`",
        _shared("      devices: [4, 5]\n      replicas: 1\n", "mps"),
        "f:5:7: sharing.mps.resources[0]: nvidia.com/gpu would be a whole GPU on some devices and under MPS "
        "on 2 others; add rename: nvidia.com/gpu.mps, or devices: all",
    ),
    Mistake(
        "`name` too long after suffix",
        f"sharing:\n  timeSlicing:\n    renameByDefault: true\n    resources:\n    - {{name: {LONG}, replicas: 2}}\n",
        f'f:5:7: sharing.timeSlicing.resources[0].rename: "{LONG}.shared" has 66 characters; 63 are allowed',
    ),
    Mistake(
        "`requireDistinctGPUs` under `mps`",
        "sharing:\n  mps:\n    requireDistinctGPUs: true\n    resources:\n    - {name: gpu, replicas: 2}\n",
        "f:3:5: sharing.mps.requireDistinctGPUs: unknown key; MPS clients work on one GPU. "
        "It belongs to sharing.timeSlicing",
    ),
    Mistake(
        "`requireDistinctGPUs` with `failRequestsGreaterThanOne: true`",
        "sharing:\n  timeSlicing:\n    failRequestsGreaterThanOne: true\n    requireDistinctGPUs: true\n"
        "    resources:\n    - {name: gpu, replicas: 2}\n",
        "f:4:26: warning: sharing.timeSlicing.requireDistinctGPUs: no effect, failRequestsGreaterThanOne already "
        "refuses more than one",
        warning=True,
    ),
    Mistake(
        "`defaultActiveThreadPercentage: 0.5`",
        _shared("      replicas: 2\n      defaultActiveThreadPercentage: 0.5\n", "mps"),
        "f:7:38: sharing.mps.resources[0].defaultActiveThreadPercentage: 0.5 is not a whole number; "
        "percent from 1 to 100 is meant, 50?",
    ),
    Mistake(
        "`activeThreadPercentage: 50`",
        _shared("      replicas: 2\n      activeThreadPercentage: 50\n", "mps"),
        "f:7:7: sharing.mps.resources[0].activeThreadPercentage: unknown key; did you mean "
        "defaultActiveThreadPercentage?",
    ),
    Mistake(
        "both memory keys",
        _shared(
            "      replicas: 2\n      defaultPinnedDeviceMemoryLimit: 16Gi\n      memoryOvercommitPercentage: 150\n",
            "mps",
        ),
        "f:8:35: sharing.mps.resources[0].memoryOvercommitPercentage: not together with "
        "defaultPinnedDeviceMemoryLimit (line 7); remove one",
    ),
    Mistake(
        "MPS limits in a time-slicing entry",
        _shared("      replicas: 2\n      defaultPinnedDeviceMemoryLimit: 16Gi\n"),
        "f:7:7: sharing.timeSlicing.resources[0].defaultPinnedDeviceMemoryLimit: unknown key; "
        "only MPS can limit memory (sharing.mps)",
    ),
    Mistake(
        "`sharedDevicesAllocationPolicy: spread`",
        "flags:\n  plugin:\n    sharedDevicesAllocationPolicy: spread\n",
        "f:3:36: flags.plugin.sharedDevicesAllocationPolicy: spread is not known to NVIDIA's plugin; "
        "set allocation.sharedPolicy: spread",
    ),
    Mistake(
        "both policies, different",
        "allocation:\n  sharedPolicy: packed\nflags:\n  plugin:\n    passDeviceSpecs: true\n"
        "    sharedDevicesAllocationPolicy: distributed\n",
        "f:2:17: allocation.sharedPolicy: packed, but flags.plugin.sharedDevicesAllocationPolicy is distributed "
        "(line 6); remove one",
    ),
    Mistake(
        "`profile: strict`",
        "health:\n  profile: strict\n",
        'f:2:12: health.profile: "strict" is not one of compat, catalog',
    ),
    Mistake(
        "`imex: {required: true}` without channels",
        "imex: {required: true}",
        "f:1:18: warning: imex.required: no effect without imex.channelIDs: [0], as no channel is asked for",
        warning=True,
    ),
    Mistake(
        "XID in both lists",
        "health:\n  fatalXIDs: [48]\n  ignoredXIDs: [31, 48]\n",
        "f:2:15: warning: health.fatalXIDs[0]: 48 is also in ignoredXIDs (line 3); fatal wins",
        warning=True,
    ),
    Mistake(
        "`fatalXIDs: [XID48]`",
        "health:\n  fatalXIDs: [XID48]\n",
        'f:2:15: health.fatalXIDs[0]: "XID48" is not a number; write 48',
    ),
    Mistake("`holdOff: 60`", "health:\n  recovery:\n    holdOff: 60\n"),
    Mistake(
        "`holdOff: 1 minute`",
        "health:\n  recovery:\n    holdOff: 1 minute\n",
        'f:3:14: health.recovery.holdOff: "1 minute" is not a duration; write 1m or 60s',
    ),
    Mistake(
        "`preStartTimeout: 60s`",
        "allocation:\n  preStartTimeout: 60s\n",
        "f:2:20: allocation.preStartTimeout: 60s is too long; the kubelet gives up after 30s, 25s is the most",
    ),
    Mistake(
        '`gpus` pattern after `"*"`',
        'resources:\n  gpus:\n  - {pattern: "*", name: gpu}\n  - {pattern: "NVIDIA A100*", name: a100}\n',
        'f:4:15: resources.gpus[1].pattern: never reached, resources.gpus[0] "*" (line 3) matches everything',
    ),
    Mistake(
        "`resources: {migs: …}`",
        "resources: {migs: []}",
        "f:1:13: resources.migs: unknown key; did you mean mig?",
    ),
    Mistake(
        "duplicate key",
        "version: v1\nsharing:\n  timeSlicing:\n    resources: [{name: gpu, replicas: 2}]\n"
        "  timeSlicing:\n    resources: [{name: gpu, replicas: 4}]\n",
        "f:5:3: sharing.timeSlicing: second time in this file, first at line 3",
    ),
    Mistake(
        "tab, missing bracket",
        "version: v1\nflags:\n\tmigStrategy: none\n",
        "f:3:1: syntax: found a tab where only spaces may indent",
    ),
    Mistake(
        "tab, missing bracket",
        "version: v1\ndevices:\n  exclude: [0, 1\n  cordon: []\n",
        'f:4:9: syntax: "[" opened at 3:12 is not closed',
    ),
    Mistake(
        "two documents (`---`)",
        "version: v1\n---\nversion: v1\n",
        "f:2:1: syntax: second document at line 2; one configuration per file",
    ),
    Mistake("`version: v2` / missing", "version: v2\n", 'f:1:10: version: "v2" is not known; v1 is'),
    Mistake("`version: v2` / missing", "flags: {}\n"),
    Mistake("empty file", ""),
    Mistake(
        "ConfigMap pasted whole",
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: nvdp-configs}\ndata:\n  default: |\n    version: v1\n",
        "f:1:1: apiVersion: this is a ConfigMap; the configuration is the text under data.<name>",
    ),
    Mistake(
        "larger than 1 MiB, anchors that multiply",
        "#" * (2**20 + 1),
        "f:1:1: file is larger than 1 MiB",
    ),
    Mistake(
        "larger than 1 MiB, anchors that multiply",
        "a: &a [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]\nb: &b [*a, *a, *a, *a, *a, *a, *a, *a, *a, *a]\n"
        "c: &c [*b, *b, *b, *b, *b, *b, *b, *b, *b, *b]\nd: [*c, *c, *c, *c, *c, *c, *c, *c, *c, *c]\n",
        "f:4:33: aliases expand to more than 10000 values",
    ),
)


def _uuid(number: int) -> str:
    return f"GPU-9a1b77c0-0000-0000-0000-{number:012d}"


def _gpu(number: int, **facts: object) -> Gpu:
    """A healthy A100 in slot ``number``; ``facts`` replace what is said here."""
    known = {"index": number, "minor": number, "product": "NVIDIA A100-SXM4-80GB", "memory_bytes": 80 * 2**30}
    known |= {"compute_capability": "8.0", "mig": MigMode.DISABLED, "numa_node": number // 4}
    return Gpu(**(known | {"uuid": _uuid(number), "pci": f"0000:{number + 16:02x}:00.0"} | facts))


_A100 = (_gpu(0),)
_WITHHELD = f"not on offer: {_uuid(0)}"
NODE_MISTAKES = (
    NodeMistake(
        "UUID of another node",
        "devices: {cordon: [0, GPU-9fffffff-0000-0000-0000-000000000000]}",
        _A100,
        "ConfigReferenceUnmatched",
        "devices.cordon[1]: GPU-9fffffff-0000-0000-0000-000000000000 is not on this node "
        "(fine if other nodes share this file)",
    ),
    NodeMistake(
        "`replicas: 70000` on 8 GPUs",
        _shared("      replicas: 70000\n"),
        tuple(_gpu(number) for number in range(8)),
        "ConfigRefused",
        "f:6:17: sharing.timeSlicing.resources[0].replicas: 8 × 70000 devices make a list of 36 MiB; "
        "2 MiB is allowed, at most 3988 replicas here",
    ),
    NodeMistake(
        "limit above the card",
        _shared("      replicas: 2\n      defaultPinnedDeviceMemoryLimit: 96Gi\n", "mps"),
        _A100,
        "MPSUnsupported",
        f"sharing.mps.resources[0].defaultPinnedDeviceMemoryLimit: 96Gi is more than {_uuid(0)} has (80 GiB); "
        f"{_WITHHELD}",
    ),
    NodeMistake(
        "MPS on a MIG device, or on a card too old",
        _shared("      replicas: 2\n", "mps"),
        (_gpu(0, mig=MigMode.ENABLED),),
        "MPSUnsupported",
        f"sharing.mps.resources[0]: {_uuid(0)} is in MIG mode; MPS on MIG is not supported; {_WITHHELD}",
    ),
    NodeMistake(
        "MPS on a MIG device, or on a card too old",
        _shared("      replicas: 2\n", "mps"),
        (_gpu(0, product="Tesla P100", compute_capability="6.0"),),
        "MPSUnsupported",
        f"sharing.mps.resources[0]: Tesla P100 has compute capability 6.0; MPS needs 7.0; {_WITHHELD}",
    ),
    NodeMistake(
        "`replicas: 60` under MPS",
        _shared("      replicas: 60\n", "mps"),
        _A100,
        "MPSUnsupported",
        "sharing.mps.resources[0].replicas: 60 is more than the 48 clients that MPS allows here "
        f"(compute capability 8.0, driver for CUDA 12.4); {_WITHHELD}",
    ),
    NodeMistake(
        '`pattern: "A100"` that matches no card',
        "resources:\n  gpus:\n  - {pattern: A100, name: a100}\n",
        _A100,
        "",
        'resources.gpus[0] "A100" matches none of: NVIDIA A100-SXM4-80GB; patterns match the whole name, try "*A100*"',
    ),
)

# Rows that are no message about a file.
NOT_IN_THE_FILE = frozenset({"a container asks for two MPS resources, or MPS and a whole GPU"})
