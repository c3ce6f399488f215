"""What is shown of a configuration reads back as the same configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from nvdp.config.load import parse_config
from nvdp.config.options import parse_options
from nvdp.config.process import ProcessOptions
from nvdp.config.schema import Config, Document
from nvdp.config.spelling import build_plain, build_shown, render_shown, spell
from tests.config.reading import errors_of, read

ROOT = Path(__file__).parents[2]
UUID = "GPU-4cf8db2d-06c0-7d70-1a51-e59b25b2c16c"


def _without_places(config: Config) -> dict[str, Any]:
    return {field: build_plain(getattr(config, field)) for field in Document.__struct_fields__}


def _assert_reads_back(config: Config) -> None:
    shown = render_shown(config, ProcessOptions(origins=_origins()))
    assert _without_places(parse_config(shown, name="shown")) == _without_places(config)


def _origins():
    return parse_options({}, {})[0].origins


@pytest.mark.parametrize("file", sorted((ROOT / "config").glob("*.yaml")), ids=lambda file: file.name)
def test_an_example_reads_back_from_what_is_shown(file: Path):
    _assert_reads_back(read(file.read_bytes()))


def test_everything_at_once_reads_back_from_what_is_shown():
    _assert_reads_back(
        read(
            f"""\
            flags:
              migStrategy: single
              nvidiaDriverRoot: "/run/a b: #c"
              plugin: {{sharedDevicesAllocationPolicy: packed, deviceListStrategy: [envvar, volume-mounts]}}
              gfd: {{sleepInterval: infinite}}
            devices: {{exclude: [0, "1:0"], cordon: ["0000:17:00.0"], removeAfter: 90}}
            resources: {{gpus: [{{pattern: "yes", name: a100}}], mig: [{{pattern: "1g.*", name: mig-small}}]}}
            sharing:
              timeSlicing:
                resources:
                - {{name: gpu, rename: s, devices: 2, replicas: 3}}
                - {{name: a100, replicas: 1}}
              mps:
                resources:
                - name: gpu
                  rename: m
                  devices: [{UUID}]
                  replicas: 4
                  defaultPinnedDeviceMemoryLimit: 1.5Gi
                  defaultPerDevicePinnedMemoryLimit: {{"0000:17:00.0": 20Gi, 3: 500M}}
            health: {{ignoredXIDs: all, fatalXIDs: [48, 79]}}
            """
        )
    )


@settings(max_examples=100, deadline=None)
@given(
    st.text(max_size=20) | st.sampled_from(["yes", "1:0", "010", "1e3", "null", "~", "0x1", "1m", "none", "-", "a: b"])
)
def test_a_text_is_spelled_so_that_yaml_reads_it_as_that_text(text: str):
    spelled = spell(text)
    assert "\n" not in spelled
    if text.isprintable():
        assert yaml.safe_load(f"a: {spelled}") == {"a": text}


LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-5, 200),
    st.sampled_from(
        ["", "all", "gpu", "none", "mixed", "envvar", "10s", "5m", "1Gi", "0", "1:0", UUID, "*", "packed", "v1"]
    ),
)
KEYS = st.sampled_from(
    [
        *(
            "version",
            "flags",
            "devices",
            "resources",
            "sharing",
            "imex",
            "allocation",
            "health",
            "plugin",
            "gfd",
            "mps",
        ),
        *(
            "timeSlicing",
            "replicas",
            "name",
            "rename",
            "exclude",
            "cordon",
            "gpus",
            "pattern",
            "migStrategy",
            "channelIDs",
        ),
        *("sharedPolicy", "ignoredXIDs", "fatalXIDs", "recovery", "holdOff", "multiUser", "renameByDefault", "other"),
    ]
)
DOCUMENTS = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=6), max_leaves=20
)


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(KEYS, DOCUMENTS, max_size=5))
def test_values_of_any_shape_under_known_keys_are_read_back_or_refused(document: dict[str, Any]):
    text = yaml.safe_dump(document)
    if not errors_of(text):
        _assert_reads_back(read(text))


def test_origins_and_options_are_shown_beside_their_values():
    options, overrides = parse_options({"gds-enabled": "true"}, {"NVDP_METRICS_PORT": "0"})
    config = parse_config("devices:\n  removeAfter: 90\n", name="a.yaml", overrides=overrides)
    shown = build_shown(config, options)
    assert (shown["name"], shown["hash"]) == ("a.yaml", config.hash)
    assert shown["config"]["devices"]["removeAfter"] == "1m30s"
    assert shown["origins"]["devices.removeAfter"] == "file line 2 (a bare number: seconds)"
    assert shown["origins"]["flags.gdsEnabled"] == "flag --gds-enabled"
    assert shown["options"]["metrics-port"] == 0
    assert shown["origins"]["--metrics-port"] == "environment NVDP_METRICS_PORT"
    text = render_shown(config, options)
    assert "  removeAfter: 1m30s                              # file line 2 (a bare number: seconds)\n" in text
    assert "# --metrics-port 0                                # environment NVDP_METRICS_PORT\n" in text


def test_the_hash_is_of_the_bytes_of_the_file():
    first, same, other = (read(text).hash for text in (b"version: v1\n", "version: v1\n", "version: v1 # note\n"))
    assert first == same != other
    assert len(first) == len("sha256:") + 12
