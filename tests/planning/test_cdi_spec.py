"""Specs on disk: what is written is read back the same, and what others or accidents left there is told apart."""

from __future__ import annotations

import json

import pytest

from nvdp.model.cdi import CdiClass
from nvdp.model.cdi_spec import CdiSpec, SpecDevice, SpecEdits, decode_spec, encode_spec, names_of
from nvdp.planning.cdi import build_specs
from tests.planning.cdi_values import FOUND, GPU_FILE, KIND, ONE, WISH, ZERO

SPEC = build_specs(WISH, FOUND)[GPU_FILE]


def document(**changes):
    return json.loads(encode_spec(SPEC)) | changes


def device(**edits):
    return {"name": "a", "containerEdits": edits}


def test_a_spec_is_read_back_as_it_was_written():
    content = encode_spec(SPEC)
    assert decode_spec(content) == SPEC
    assert encode_spec(decode_spec(content)) == content


def test_a_file_is_for_people_to_read_too():
    assert encode_spec(SPEC).decode().splitlines()[:3] == [
        "{",
        '  "cdiVersion": "0.7.0",',
        f'  "kind": "{KIND}",',
    ]
    assert encode_spec(SPEC).endswith(b"}\n")


def test_names_are_those_that_a_runtime_is_given():
    assert names_of(SPEC) == {f"{KIND}={ZERO}", f"{KIND}={ONE}", f"{KIND}=all"}


def test_a_spec_of_nvidias_plugin_is_ours():
    content = json.dumps(
        {
            "cdiVersion": "0.7.0",
            "kind": KIND,
            "devices": [
                {
                    "name": "GPU-a",
                    "annotations": {"gpu.nvidia.com/coherent": "true"},
                    "containerEdits": {
                        "deviceNodes": [{"path": "/dev/nvidia0", "type": "c", "major": 195, "permissions": "rw"}],
                        "hooks": [{"hookName": "createContainer", "path": "/usr/bin/nvidia-ctk", "timeout": 5}],
                        "additionalGids": [44],
                    },
                }
            ],
            "containerEdits": {"env": ["NVIDIA_VISIBLE_DEVICES=void"]},
        }
    )
    spec = decode_spec(content.encode())
    assert names_of(spec) == {f"{KIND}=GPU-a"}
    assert json.loads(encode_spec(spec)) == json.loads(content)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"null",
        b"[]",
        encode_spec(SPEC)[:-40],
        b"\xff\xfe",
        b"[" * 100_000,
        json.dumps(document(kind="nvidia.com/gpu")).encode(),
        json.dumps(document(kind="k8s.device-plugin.nvidia.com.example/gpu")).encode(),
        json.dumps(document(devices=[])).encode(),
        json.dumps(document(devices=[device()])).encode(),
        json.dumps(document(devices=[device(env=["A=1"]), device(env=["A=2"])])).encode(),
        json.dumps(document(devices=[device(env=["A"])])).encode(),
        json.dumps(document(devices=[device(deviceNodes=[{"path": "dev/a"}])])).encode(),
        json.dumps(document(devices=[device(deviceNodes=[{"path": "/dev/../a"}])])).encode(),
        json.dumps(document(devices=[device(deviceNodes=[{"path": "/dev/a", "permissions": "x"}])])).encode(),
        json.dumps(document(devices=[{"name": "a/b", "containerEdits": {"env": ["A=1"]}}])).encode(),
        json.dumps(document(devices=[device(intelRdt={"closID": "a"})])).encode(),
        json.dumps(document(note="x")).encode(),
    ],
)
def test_a_damaged_or_foreign_file_is_no_spec(content):
    assert decode_spec(content) is None


def test_fields_without_a_value_are_not_written():
    spec = CdiSpec(
        cdi_version="0.3.0",
        kind=CdiClass.MOFED.kind,
        devices=(SpecDevice(name="all", container_edits=SpecEdits(env=("A=1",))),),
    )
    assert json.loads(encode_spec(spec)) == {
        "cdiVersion": "0.3.0",
        "kind": CdiClass.MOFED.kind,
        "devices": [{"name": "all", "containerEdits": {"env": ["A=1"]}}],
    }
