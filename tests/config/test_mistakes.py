"""Every mistake that the documentation lists gives the verdict and the message that it lists, at the right place."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from nvdp.model.inventory import Inventory
from nvdp.planning.allotment import allot, resolve_pins
from nvdp.planning.announcing import announce_plan
from nvdp.planning.judging import find_unfit
from nvdp.planning.plan import build_plan
from nvdp.planning.remarks import find_warnings
from tests.config.mistakes import MISTAKES, NODE_MISTAKES, NOT_IN_THE_FILE, Mistake, NodeMistake
from tests.config.reading import errors_of, read, warnings_of
from tests.planning.values import inputs

DOCUMENTATION = Path(__file__).parents[2] / "docs" / "configuration.md"


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.row)
def test_a_mistake_says_where_it_is_and_what_to_do(mistake: Mistake):
    said = warnings_of(mistake.text) if mistake.warning else errors_of(mistake.text)
    assert said == ([mistake.line] if mistake.line else [])


def _tell(mistake: NodeMistake) -> list[tuple[str, str]]:
    """Every line that is told where the file comes into force, with its reason."""
    config, node = read(mistake.text), Inventory(driver=mistake.driver, gpus=mistake.gpus)
    pins = resolve_pins(config, node.gpus, {}, {})
    refusal = find_unfit(config, node, pins)
    if refusal is not None:
        return [("ConfigRefused", str(refusal))]
    plan = build_plan(inputs(config, inventory=node, pins=pins))
    unmatched = allot(config, node, pins).unmatched
    told = [("ConfigReferenceUnmatched", text) for text in unmatched]
    words = {"EntryWithheld", "MPSUnsupported"}
    told += [(one.reason.word, one.text) for one in announce_plan(None, plan) if one.reason.word in words]
    shown = find_warnings(config, node, pins, plan)
    return told + [("", text) for text in shown if text not in unmatched and not text.startswith(config.name)]


@pytest.mark.parametrize("mistake", NODE_MISTAKES, ids=lambda mistake: mistake.row)
def test_a_mistake_that_the_hardware_shows_says_where_it_is_and_what_to_do(mistake: NodeMistake):
    assert errors_of(mistake.text) == []
    assert _tell(mistake) == [(mistake.reason, mistake.line)]


def _documented_rows() -> dict[str, str]:
    """First column to second column of the documentation's table."""
    table = DOCUMENTATION.read_text().partition("## What a mistake says")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (.+?) \| (.+) \|$", table, re.MULTILINE)
    return {mistake: message for mistake, message in rows if mistake not in {"mistake", "---"}}


def test_the_documentation_lists_exactly_the_mistakes_that_are_tested():
    tested = {mistake.row for mistake in (*MISTAKES, *NODE_MISTAKES)}
    assert set(_documented_rows()) == tested | NOT_IN_THE_FILE


@pytest.mark.parametrize("mistake", [*MISTAKES, *NODE_MISTAKES], ids=lambda mistake: mistake.row)
def test_the_messages_of_the_documentation_are_the_ones_that_are_given(mistake: Mistake | NodeMistake):
    quoted = re.findall(r"`(?!replicas: |\"4\")([^`]+)`", _documented_rows()[mistake.row])
    patterns = [_as_pattern(text) for text in quoted]
    said = re.sub(r"^f:\d+:\d+: (warning: )?", "", mistake.line).partition("; not on offer: ")[0]
    assert not said or any(pattern.fullmatch(said) for pattern in patterns), (mistake.row, said, quoted)


def _as_pattern(quoted: str) -> re.Pattern[str]:
    """``…`` stands for any text; places and lines are those of some file, UUIDs and limits those of some node."""
    pattern = re.escape(quoted).replace("…", ".*")
    pattern = re.sub(r"GPU\\-[0-9a-f]{8}\b", "GPU-[0-9a-f-]{36}", pattern)
    pattern = re.sub(r"at\\ most\\ \d+", r"at\\ most\\ \\d+", pattern)
    pattern = re.sub(r"(line|at|to)(\\ )\d+(:\d+)?", r"\1\2\\d+(:\\d+)?", pattern)
    return re.compile(re.sub(r"\d+:\d+\\ is\\ not", r"\\d+:\\d+\\ is\\ not", pattern))


def test_a_bare_number_is_seconds_and_its_origin_says_so():
    config = read("health:\n  recovery:\n    holdOff: 60\n")
    assert config.health.recovery.hold_off.seconds == 60
    assert str(config.origins["health.recovery.holdOff"]) == "file line 3 (a bare number: seconds)"


def test_all_mistakes_of_a_file_come_at_once_in_the_order_of_the_file():
    lines = errors_of(
        """\
        version: v2
        flags:
          migStrategy: some
          plugin: {passDeviceSpecs: "true"}
        sharing:
          timeSlicing:
            resources:
            - name: nvidia.com/gpu
              replicas: 0
            - name: $invalid$
              replicas: two
        health: {callTimeout: 2m, unheard: 1}
        """
    )
    assert [line.split(": ")[:2] for line in lines] == [
        ["f:1:10", "version"],
        ["f:3:16", "flags.migStrategy"],
        ["f:4:29", "flags.plugin.passDeviceSpecs"],
        ["f:9:17", "sharing.timeSlicing.resources[0].replicas"],
        ["f:10:13", "sharing.timeSlicing.resources[1].name"],
        ["f:11:17", "sharing.timeSlicing.resources[1].replicas"],
        ["f:12:23", "health.callTimeout"],
        ["f:12:27", "health.unheard"],
    ]


def test_a_mistake_elsewhere_does_not_hide_a_broken_rule():
    lines = errors_of("version: v2\ndevices:\n  exclude: [nonsense, 0]\n  cordon: [1, 0]\n")
    assert [line.split(": ")[1] for line in lines] == ["version", "devices.exclude[0]", "devices.cordon[1]"]
    assert "(line 3)" in lines[2]


def test_an_entry_left_out_for_a_mistake_does_not_make_its_neighbour_look_wrong():
    lines = errors_of(
        """\
        sharing:
          timeSlicing:
            resources:
            - {name: gpu, replicas: 0}
            - {name: gpu, devices: [4], replicas: 2}
        """
    )
    assert lines == ["f:4:29: sharing.timeSlicing.resources[0].replicas: 0 is too small; 1 means unshared"]


def test_an_unknown_key_near_a_missing_one_is_one_mistake():
    assert len(errors_of("sharing: {timeSlicing: {resources: [{name: gpu, replica: 20}]}}")) == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("replicas: 4", "replicas: unknown key; it belongs to sharing.timeSlicing.resources[].replicas"),
        ("exclude: [0]", "exclude: unknown key; it belongs to devices.exclude"),
        ("flags: {sharing: {}}", "flags.sharing: unknown key; it belongs to the top level"),
        ("flags: {sharedpolicy: packed}", "flags.sharedpolicy: unknown key; it belongs to allocation.sharedPolicy"),
        ("imex: {zzz: 1}", "imex.zzz: unknown key; known here: channelIDs, required"),
        ('imex: {"a b": 1}', 'imex."a b": unknown key; known here: channelIDs, required'),
        ("1: 2", "1: unknown key; known here: version"),
        ("flags: {imexChannelIDs: [0]}", "flags.imexChannelIDs: unknown key; it belongs to imex.channelIDs"),
        ("flags: {plugin: {imexRequired: true}}", "imexRequired: unknown key; it belongs to imex.required"),
        ("health: {recoveryHoldOff: 5s}", "recoveryHoldOff: unknown key; it belongs to health.recovery.holdOff"),
    ],
)
def test_an_unknown_key_is_told_where_it_belongs(text: str, said: str):
    assert said in errors_of(text)[0]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("- a", 'a configuration is a block of keys and begins with "version: v1"'),
        ("flags: 1", "flags: a block of keys is needed"),
        ("flags: [1]", "flags: a block of keys is needed, not a list"),
        ("flags: {migStrategy: [none]}", "flags.migStrategy: one value is needed, not a list"),
        ("flags: {migStrategy: {a: b}}", "flags.migStrategy: one value is needed, not a block"),
        ("devices: {exclude: {a: b}}", 'devices.exclude: a list is needed; begin each entry with "- "'),
        ('devices: {exclude: "0"}', 'devices.exclude: a list is needed: ["0"]'),
        ("resources: {gpus: [x]}", "resources.gpus[0]: a block of keys is needed"),
        ("resources: {gpus: [{pattern: '', name: a}]}", "resources.gpus[0].pattern: an empty pattern matches nothing"),
        ("sharing: {timeSlicing: {resources: []}}", "resources: is empty; remove the block to share nothing"),
        ("sharing:\n  timeSlicing:\n", "sharing.timeSlicing: resources is missing"),
        ("flags: {plugin: {deviceListStrategy: []}}", "is empty; containers would see no device"),
        (
            'flags: {plugin: {deviceListStrategy: "envvar, cdi-cri"}}',
            '"envvar, cdi-cri" is not one of envvar, volume-mounts, cdi-annotations, cdi-cri; write [envvar, cdi-cri]',
        ),
        (
            "flags: {plugin: {deviceListStrategy: 'envvar,cdi'}}",
            '"envvar,cdi" is not one of envvar, volume-mounts, cdi-annotations, cdi-cri',
        ),
        ("flags: {failOnInitError: 1}", "flags.failOnInitError: 1 is not true or false"),
        ("flags: {failOnInitError: maybe}", 'flags.failOnInitError: "maybe" is not true or false'),
        ("devices: {rescanInterval: 500ms}", "devices.rescanInterval: 500ms is too short; 1s is the least"),
        ("devices: {rescanInterval: 2m}", "devices.rescanInterval: 2m is too long; 1m is the most"),
        ("devices: {removeAfter: infinite}", "devices.removeAfter: infinite is not possible here"),
        (
            "devices: {removeAfter: 1:30}",
            'devices.removeAfter: 1:30 reads as a base-60 number in YAML; quote it: "1:30"',
        ),
        ("devices: {exclude: [0x1]}", 'devices.exclude[0]: 0x1 reads as a hexadecimal number in YAML; quote it: "0x1"'),
        ("health: {fatalXIDs: 48}", "health.fatalXIDs: a list is needed: [48]"),
        ("health: {fatalXIDs: [010]}", "health.fatalXIDs[0]: 010 reads as an octal number in YAML; write 8"),
        ("health: {fatalXIDs: [two]}", 'health.fatalXIDs[0]: "two" is not a number'),
        ('health: {fatalXIDs: ["x"]}', 'health.fatalXIDs[0]: "x" is not a number'),
        ("health: {fatalXIDs: [08]}", 'health.fatalXIDs[0]: "08" is not a number; write 8'),
        ("health: {fatalXIDs: [0b11]}", "health.fatalXIDs[0]: 0b11 reads as a binary number in YAML; write 3"),
        ("health: {fatalXIDs: [99999999999999999999]}", "health.fatalXIDs[0]: 999999999999999999… is too large"),
        ("health: {fatalXIDs: [1_000]}", 'health.fatalXIDs[0]: "1_000" is not a number; write 1000'),
        ("health: {fatalXIDs: [-5]}", "health.fatalXIDs[0]: -5 is too small; 1 is the least"),
        ("health: {fatalXIDs: [2.5]}", "health.fatalXIDs[0]: 2.5 is not a whole number"),
        ("imex: {channelIDs: [2]}", "imex.channelIDs[0]: 2 is too large; [] and [0] are possible"),
        ("imex: {channelIDs: [1]}", "imex.channelIDs[0]: 1 is too large; [] and [0] are possible"),
        (
            "flags: {plugin: {cdiAnnotationPrefix: cdi.k8s.io}}",
            'cdiAnnotationPrefix: "cdi.k8s.io" is not a domain and a slash; write one like cdi.k8s.io/',
        ),
        ("flags: {plugin: {cdiAnnotationPrefix: ''}}", 'cdiAnnotationPrefix: "" is not a domain and a slash'),
        ("flags: {plugin: {cdiAnnotationPrefix: a/b/}}", 'cdiAnnotationPrefix: "a/b/" is not a domain and a slash'),
        ("flags: {plugin: {cdiAnnotationPrefix: CDI.io/}}", 'cdiAnnotationPrefix: "CDI.io/" is not a domain'),
        (
            "flags: {plugin: {nvidiaCTKPath: nvidia-ctk}}",
            'nvidiaCTKPath: "nvidia-ctk" is not the absolute path of a file; write one like /usr/bin/nvidia-ctk',
        ),
        ("flags: {plugin: {nvidiaCTKPath: /usr/../bin/ctk}}", 'nvidiaCTKPath: "/usr/../bin/ctk" is not the absolute'),
        (
            "flags: {nvidiaDriverRoot: run/driver}",
            'nvidiaDriverRoot: "run/driver" is not an absolute path; write one like /run/nvidia/driver',
        ),
        ("flags: {nvidiaDevRoot: /a/../b}", 'nvidiaDevRoot: "/a/../b" is not an absolute path'),
        (
            "flags: {plugin: {containerDriverRoot: driver-root}}",
            'containerDriverRoot: "driver-root" is not an absolute',
        ),
        ("flags: {plugin: {nvidiaCTKPath: /usr/bin/}}", 'nvidiaCTKPath: "/usr/bin/" is not the absolute path'),
        ('flags: {nvidiaDriverRoot: "/run/a\\nb"}', 'nvidiaDriverRoot: "/run/a\\nb" is not an absolute path'),
        ('flags: {plugin: {nvidiaCTKPath: "/usr/bin/\\0ctk"}}', 'ctk" is not the absolute path of a file'),
        ("kind: ConfigMap\ndata: {}\n", "f:1:1: kind: this is a ConfigMap"),
    ],
)
def test_a_value_of_the_wrong_kind_is_told_what_is_needed(text: str, said: str):
    assert said in errors_of(text)[0]


def _entry(keys: str, block: str = "mps") -> str:
    return f"sharing: {{{block}: {{resources: [{{name: gpu, replicas: 2, {keys}}}]}}}}"


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ("devices: 0", "devices: 0 is too small; write a count from 1, or all"),
        ("devices: []", "devices: is empty; write all, a count, or a list of devices"),
        ("devices: ", "devices: is empty; write all, a count, or a list of devices"),
        ("devices: {a: b}", "devices: write all, a count, or a list of devices, not a block"),
        ("devices: '2'", 'devices: a list is needed: ["2"]'),
        ("devices: most", 'devices: "most" is not all, a count, or a list of devices'),
        ("defaultActiveThreadPercentage: 0", "0 is too small; percent from 1 to 100 is meant"),
        ("defaultActiveThreadPercentage: 101", "101 is too large; percent from 1 to 100 is meant"),
        ("memoryOvercommitPercentage: 1.5", "1.5 is not a whole number; percent from 100 to 1000 is meant"),
        ("defaultPinnedDeviceMemoryLimit: 512Ki", "512Ki is too small; 1Mi is the least"),
        ("defaultPerDevicePinnedMemoryLimit: 5Gi", "defaultPerDevicePinnedMemoryLimit: a block of keys is needed"),
        ("defaultPerDevicePinnedMemoryLimit: {GPU: 5Gi}", 'PinnedMemoryLimit.GPU: "GPU" is not a device'),
        ("defaultPerDevicePinnedMemoryLimit: {0: x}", 'PinnedMemoryLimit.0: "x" is not an amount of memory'),
        ('defaultPerDevicePinnedMemoryLimit: {0: 5Gi, "0": 6Gi}', 'PinnedMemoryLimit.0: "0" is listed twice'),
        (
            "memoryOvercommitPercentage: 150, defaultPerDevicePinnedMemoryLimit: {0: 5Gi}",
            "not together with defaultPerDevicePinnedMemoryLimit",
        ),
    ],
)
def test_a_value_of_a_sharing_entry_is_told_what_is_needed(keys: str, said: str):
    assert said in errors_of(_entry(keys))[0]


def test_overcommitment_without_a_limit_is_allowed():
    assert errors_of(_entry("memoryOvercommitPercentage: 150")) == []


def test_booleans_of_yaml_1_1_are_read_with_a_warning():
    text = "flags: {failOnInitError: off, gdsEnabled: Yes}"
    config = read(text)
    assert (config.flags.fail_on_init_error, config.flags.gds_enabled) == (False, True)
    assert warnings_of(text) == [
        "f:1:26: warning: flags.failOnInitError: off is read as false; write false",
        "f:1:43: warning: flags.gdsEnabled: Yes is read as true; write true",
    ]


def test_a_device_listed_twice_is_a_warning():
    assert warnings_of('devices: {exclude: [0, 1, "0"]}') == [
        'f:1:27: warning: devices.exclude[2]: "0" is listed twice'
    ]


def test_a_key_with_nothing_after_it_is_as_good_as_absent():
    config = read("version:\nflags:\n  migStrategy: null\n  plugin: ~\ndevices:\n  exclude:\nsharing:\n  mps:\n")
    assert config.flags == read("").flags
    assert config.devices.exclude == ()
    assert config.sharing.mps is None


def test_a_pasted_log_is_a_hundred_lines_and_a_count():
    lines = errors_of("".join(f"key{number}: 1\n" for number in range(20_000)))
    assert len(lines) == 101
    assert lines[-1].endswith("19900 more")
