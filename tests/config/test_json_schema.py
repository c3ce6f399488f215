"""api/config.schema.json is what the code gives, and it accepts what the loader accepts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from nvdp.config.jsonschema import build_json_schema
from tests.config.mistakes import MISTAKES
from tests.config.reading import errors_of

ROOT = Path(__file__).parents[2]
SCHEMA = build_json_schema()
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)
UUID = "4cf8db2d-06c0-7d70-1a51-e59b25b2c16c"


def test_the_schema_in_the_repository_is_the_one_that_the_code_gives():
    assert json.loads((ROOT / "api" / "config.schema.json").read_text()) == SCHEMA


def test_the_schema_is_one():
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


@pytest.mark.parametrize("file", sorted((ROOT / "config").glob("*.yaml")), ids=lambda file: file.name)
def test_the_examples_are_valid_by_the_schema(file: Path):
    VALIDATOR.validate(yaml.safe_load(file.read_text()))


def _shared(**keys: Any) -> dict[str, Any]:
    entry = {"name": "gpu", "rename": "gpu.shared", "replicas": 2, **keys}
    return {"sharing": {"timeSlicing": {"resources": [entry]}}}


BOTH = [
    {"flags": {"migStrategy": "mixed", "plugin": {"deviceListStrategy": "envvar"}, "gfd": {"sleepInterval": 5}}},
    {"flags": {"migStrategy": None, "plugin": {"deviceListStrategy": ["envvar", "cdi-cri"]}, "gfd": None}},
    {"flags": {"plugin": {"sharedDevicesAllocationPolicy": "packed"}}, "allocation": {"sharedPolicy": "packed"}},
    {"devices": {"exclude": [0, "1:0", f"GPU-{UUID}", f"MIG-GPU-{UUID}/1/0", "0000:65:00.0"], "rescanInterval": "1m"}},
    {"flags": {"plugin": {"cdiAnnotationPrefix": "nvidia.cdi.k8s.io/", "nvidiaCTKPath": "/usr/local/.x/nvidia-ctk"}}},
    {"flags": {"nvidiaDriverRoot": "/", "nvidiaDevRoot": "", "plugin": {"containerDriverRoot": "/host/root/"}}},
    _shared(devices="all"),
    _shared(devices=2),
    _shared(devices=[3]),
    {"health": {"ignoredXIDs": "all", "fatalXIDs": [48]}, "imex": {"channelIDs": [0]}},
    {"sharing": {"mps": {"resources": [{"name": "a", "replicas": 2, "defaultPinnedDeviceMemoryLimit": "1Gi"}]}}},
]
NEITHER = [
    {"flags": {"migStrategy": "some"}},
    {"flags": {"renameByDefault": True}},
    {"flags": {"failOnInitError": "true"}},
    {"flags": {"plugin": {"deviceListStrategy": []}}},
    {"flags": {"plugin": {"sharedDevicesAllocationPolicy": "spread"}}},
    {"flags": {"plugin": {"cdiAnnotationPrefix": "cdi.k8s.io"}}},
    {"flags": {"plugin": {"cdiAnnotationPrefix": "a_b.io/"}}},
    {"flags": {"plugin": {"nvidiaCTKPath": "bin/nvidia-ctk"}}},
    {"flags": {"plugin": {"nvidiaCTKPath": "/bin/./nvidia-ctk"}}},
    {"flags": {"nvidiaDriverRoot": "driver"}},
    {"devices": {"exclude": ["GPU-UUID"]}},
    {"devices": {"exclude": 3}},
    {"version": "v2"},
    {"sharing": {"timeSlicing": {}}},
    {"sharing": {"timeSlicing": None}},
    _shared(replicas=0),
    _shared(replicas="4"),
    _shared(devices=[]),
    _shared(devices=None),
    _shared(devices="most"),
    {"imex": {"channelIDs": [2]}},
    [],
]


@pytest.mark.parametrize("document", BOTH, ids=json.dumps)
def test_what_the_loader_accepts_the_schema_accepts(document: Any):
    assert errors_of(json.dumps(document)) == []
    VALIDATOR.validate(document)


@pytest.mark.parametrize("document", NEITHER, ids=json.dumps)
def test_what_the_schema_refuses_the_loader_refuses(document: Any):
    assert errors_of(json.dumps(document))
    assert not VALIDATOR.is_valid(document)


def test_a_documented_mistake_that_is_accepted_is_valid_by_the_schema():
    for mistake in MISTAKES:
        if mistake.warning or not mistake.line:
            VALIDATOR.validate(yaml.safe_load(mistake.text) or {})
