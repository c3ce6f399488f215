"""The validator itself: it takes what a runtime takes and refuses what a runtime refuses."""

from __future__ import annotations

import copy
import json

import pytest

from tests.cdi.validator import KNOWN_VERSIONS, SpecError, check_spec, parse_document, resolve

GOOD = {
    "cdiVersion": "0.7.0",
    "kind": "vendor.example/gpu",
    "devices": [
        {"name": "one", "containerEdits": {"deviceNodes": [{"path": "/dev/one", "hostPath": "/root/dev/one"}]}},
        {"name": "2:0", "containerEdits": {"deviceNodes": [{"path": "/dev/two", "type": "c", "permissions": "rw"}]}},
    ],
    "containerEdits": {
        "env": ["A=void", "B="],
        "mounts": [{"hostPath": "/usr/lib/a.so", "containerPath": "/usr/lib/a.so", "options": ["ro", "rbind"]}],
        "hooks": [{"hookName": "createContainer", "path": "/usr/bin/hook", "args": ["hook", "x"], "env": ["D=0"]}],
        "additionalGids": [44],
    },
}
ONE, TWO = ("devices", 0), ("devices", 1)
NODE, MOUNT = (*ONE, "containerEdits", "deviceNodes", 0), ("containerEdits", "mounts", 0)
HOOK = ("containerEdits", "hooks", 0)


def changed(path, value):
    """``GOOD`` with the value at ``path`` replaced, or taken away where it is None."""
    spec = copy.deepcopy(GOOD)
    place = spec
    for key in path[:-1]:
        place = place[key]
    if value is None:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return spec


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (("cdiVersion",), None, "missing"),
        (("cdiVersion",), "v0.7.0", "not known"),
        (("cdiVersion",), "2.0.0", "not known"),
        (("cdiVersion",), "0.6.0", "below 0.7.0"),
        (("kind",), "vendor.example", "vendor of"),
        (("kind",), "1vendor/gpu", "vendor of"),
        (("kind",), "vendor/gpu-", "class of"),
        (("devices",), [], "at least one"),
        (("devices",), {}, "not of type list"),
        ((*ONE, "name"), "2:0", "more than once"),
        ((*ONE, "name"), "MIG-GPU-a/1/0", "name"),
        ((*ONE, "name"), "a=b", "name"),
        ((*ONE, "name"), "one-", "name"),
        ((*ONE, "containerEdits"), {}, "empty"),
        ((*ONE, "containerEdits"), {"deviceNodes": []}, "empty"),
        ((*ONE, "note"), "x", "unknown"),
        ((*ONE, "annotations"), {"a": 1}, "texts"),
        ((*NODE, "path"), None, "missing"),
        ((*NODE, "path"), "dev/one", "path"),
        ((*NODE, "path"), "/dev/../one", "path"),
        ((*NODE, "hostPath"), "//dev/one", "hostPath"),
        ((*NODE, "type"), "x", "type"),
        ((*NODE, "permissions"), "rwx", "permissions"),
        ((*NODE, "major"), "195", "not of type int"),
        ((*MOUNT, "hostPath"), None, "missing"),
        ((*MOUNT, "options"), [1], "options"),
        ((*HOOK, "hookName"), "precreate", "hookName"),
        ((*HOOK, "path"), "hook", "path"),
        ((*HOOK, "timeout"), 0, "timeout"),
        (("containerEdits",), [], "not of type dict"),
        (("containerEdits", "env"), ["A"], "env"),
        (("containerEdits", "additionalGids"), [0], "additionalGids"),
        (("containerEdits", "devices"), [], "unknown"),
        (("extra",), 1, "unknown"),
    ],
)
def test_what_a_runtime_refuses_is_an_error_with_its_place(path, value, said):
    check_spec(copy.deepcopy(GOOD))
    with pytest.raises(SpecError, match=said):
        check_spec(changed(path, value))


@pytest.mark.parametrize(
    ("field", "minimum"),
    [
        ({}, "0.3.0"),
        ({"containerEdits": {"mounts": [{"hostPath": "/a", "containerPath": "/a", "type": "bind"}]}}, "0.4.0"),
        ({"name": "0"}, "0.5.0"),
        ({"containerEdits": {"deviceNodes": [{"path": "/dev/a", "hostPath": "/b"}]}}, "0.5.0"),
        ({"annotations": {"a": "b"}}, "0.6.0"),
        ({"containerEdits": {"additionalGids": [4]}}, "0.7.0"),
        ({"containerEdits": {"netDevices": [{"hostInterfaceName": "a", "name": "b"}]}}, "1.1.0"),
    ],
)
def test_each_field_needs_the_version_that_brought_it(field, minimum):
    device = {"name": "a", "containerEdits": {"env": ["A=1"]}} | field
    for version in KNOWN_VERSIONS:
        spec = {"cdiVersion": version, "kind": "vendor.example/gpu", "devices": [device]}
        if KNOWN_VERSIONS.index(version) >= KNOWN_VERSIONS.index(minimum):
            check_spec(spec)
        else:
            with pytest.raises(SpecError, match=f"below {minimum}"):
                check_spec(spec)


def test_a_key_that_stands_twice_in_one_object_is_an_error():
    with pytest.raises(SpecError, match="more than once"):
        parse_document(b'{"kind": "a", "kind": "b"}')


def write(directory, name, *devices, kind="vendor.example/gpu", env="A=1"):
    """A spec file whose devices each have one node, named after the directory."""
    directory.mkdir(exist_ok=True)
    spec = {
        "cdiVersion": "0.3.0",
        "kind": kind,
        "devices": [
            {"name": one, "containerEdits": {"deviceNodes": [{"path": f"/dev/{directory.name}-{one}"}]}}
            for one in devices
        ],
        "containerEdits": {"env": [env]},
    }
    (directory / name).write_text(json.dumps(spec))


def test_two_devices_of_one_spec_bring_its_common_edits_once(tmp_path):
    write(tmp_path / "run", "a.json", "one", "two")
    write(tmp_path / "run", "b.json", "all", kind="vendor.example/gds", env="B=1")

    got = resolve(["vendor.example/gpu=one", "vendor.example/gpu=two", "vendor.example/gds=all"], tmp_path / "run")

    assert got.env == ["A=1", "B=1"]
    assert list(got.nodes) == ["/dev/run-one", "/dev/run-two", "/dev/run-all"]


def test_the_later_directory_has_priority(tmp_path):
    write(tmp_path / "etc", "a.json", "one", "two")
    write(tmp_path / "run", "a.json", "one")

    got = resolve(["vendor.example/gpu=one", "vendor.example/gpu=two"], tmp_path / "etc", tmp_path / "run")

    assert list(got.nodes) == ["/dev/run-one", "/dev/etc-two"]


def test_a_name_that_two_files_of_one_directory_have_is_of_no_use_at_all(tmp_path):
    write(tmp_path / "etc", "a.json", "one")
    write(tmp_path / "run", "a.json", "one")
    write(tmp_path / "run", "b.json", "one", "two")

    resolve(["vendor.example/gpu=two"], tmp_path / "etc", tmp_path / "run")
    with pytest.raises(SpecError, match="unresolvable"):
        resolve(["vendor.example/gpu=one"], tmp_path / "etc", tmp_path / "run")


def test_files_that_are_damaged_or_of_another_kind_give_no_names(tmp_path):
    write(tmp_path / "run", "a.json", "one")
    write(tmp_path / "run", "b.tmp", "two")
    (tmp_path / "run/c.json").write_text('{"cdiVersion": "0.3.0", "kind"')

    resolve(["vendor.example/gpu=one"], tmp_path / "run")
    with pytest.raises(SpecError, match="two"):
        resolve(["vendor.example/gpu=two"], tmp_path / "run")
