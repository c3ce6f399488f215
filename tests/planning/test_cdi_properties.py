"""Rules that hold for the CDI specs of any node and any wish."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvdp.model.cdi import CdiClass, CdiDevice, CdiWish, build_device_name, qualify
from nvdp.model.cdi_found import Found
from nvdp.model.cdi_spec import SpecDevice, SpecEdits, SpecMount, SpecNode, decode_spec, encode_spec, names_of
from nvdp.model.driver_files import DriverFile, DriverFiles, DrmNodes, Link, NodeFacts
from nvdp.planning.cdi import build_specs, find_problems
from nvdp.planning.cdi_edits import is_missing
from tests.cdi.validator import KNOWN_VERSIONS, SpecError, check_spec, find_minimum_version, load_names, resolve

FEATURES = (CdiClass.GDRCOPY, CdiClass.GDS, CdiClass.MOFED)
SLOTS = ("0000:41:00.0", "0000:61:00.0")
NODES = ("/dev/nvidia0", "/dev/nvidia1", "/dev/nvidia-caps/nvidia-cap3", "/dev/nvidiactl", "/dev/dri/card1", "/dev/dxg")
CHANNEL = "/dev/nvidia-caps-imex-channels/channel0"
ROOTS = ("/", "/run/nvidia/driver", "/run/nvidia/driver/", "//opt")
UUIDS = ("GPU-a", "GPU-b", "MIG-GPU-a/1/0", "MIG-c")

paths = st.sampled_from(("/usr/lib64/a.so.1", "/usr/lib64/b.so.1", "/lib64/a.so.1", "/run/s/socket", "/tmp/nvidia-mps"))
driver_files = st.lists(st.builds(DriverFile, paths, paths), max_size=4).map(tuple)
links = st.lists(st.builds(Link, st.sampled_from(("a.so.1", "../card1")), paths), max_size=2).map(tuple)
drivers = st.builds(
    DriverFiles,
    version=st.sampled_from(("", "580.65.06")),
    library_dirs=st.sampled_from(((), ("/usr/lib64",))),
    cuda_dirs=st.sampled_from(((), ("/usr/lib64",), ("/usr/lib64", "/usr/lib"))),
    libraries=driver_files,
    binaries=driver_files,
    firmware=driver_files,
    sockets=driver_files,
    configs=driver_files,
    links=links,
)
facts = st.builds(
    NodeFacts,
    type=st.sampled_from("cb"),
    major=st.integers(1, 511),
    minor=st.integers(0, 255),
    mode=st.sampled_from((None, 0o666, 0o660, 0o600)),
    gid=st.sampled_from((None, 0, 44)),
)
edits = st.builds(
    SpecEdits,
    env=st.sampled_from(((), ("A=1",))),
    device_nodes=st.sampled_from(
        ((SpecNode(path="/dev/old", host_path="/x/dev/old", uid=1),), (SpecNode(path="/dev/old"),))
    ),
    mounts=st.sampled_from(((), (SpecMount(host_path="/a", container_path="/b", type="bind"),))),
)
old_names = st.sampled_from(("GPU-a", "GPU-gone", "0", "all", "MIG-gone"))
priors = st.dictionaries(
    st.sampled_from(CdiClass), st.dictionaries(old_names, edits, min_size=1, max_size=3), max_size=3
)
devices = st.builds(
    CdiDevice,
    names=st.lists(st.sampled_from((*UUIDS, "0", "0:1", "all")).map(build_device_name), min_size=1, max_size=2).map(
        tuple
    ),
    nodes=st.lists(st.sampled_from(NODES), max_size=3).map(tuple),
    pci=st.sampled_from((None, *SLOTS)),
)
wishes = st.builds(
    CdiWish,
    devices=st.lists(devices, max_size=4).map(tuple),
    keep=st.frozensets(old_names, max_size=3),
    keep_classes=st.frozensets(st.sampled_from(CdiClass), max_size=2).map(lambda some: some - {CdiClass.GPU}),
    features=st.lists(st.sampled_from(FEATURES), unique=True).map(tuple),
    imex_channels=st.sampled_from(((), (0,))),
    driver_version=st.sampled_from(("", "580.65.06")),
    driver_root=st.sampled_from(ROOTS),
    dev_root=st.sampled_from(ROOTS),
    hook_path=st.sampled_from(("/usr/bin/nvidia-ctk", "/opt/nvidia-cdi-hook")),
    feature_flags=st.lists(
        st.sampled_from(("no-additional-gids-for-device-nodes", "disable-ipc-discoverer", "what-is-this"))
    ).map(tuple),
    disabled_hooks=st.lists(st.sampled_from(("all", "update-ldcache", "chmod", "create-symlinks"))).map(tuple),
)


@st.composite
def nodes(draw):
    """A node as found, with any specs of any earlier time on disk."""
    prior = {}
    for cdi_class, entries in draw(priors).items():
        spec = {
            "cdiVersion": "0.5.0",
            "kind": cdi_class.kind,
            "devices": [SpecDevice(name=name, container_edits=one) for name, one in entries.items()],
        }
        prior[cdi_class] = decode_spec(msgspec.json.encode(spec))
    return Found(
        driver=draw(drivers),
        nodes=draw(st.dictionaries(st.sampled_from((*NODES, CHANNEL, "/dev/gdrdrv")), st.none() | facts)),
        control_nodes=draw(st.sampled_from(((), ("/dev/nvidiactl", "/dev/nvidia-uvm")))),
        displays=draw(
            st.dictionaries(
                st.sampled_from(SLOTS), st.builds(DrmNodes, nodes=st.just(("/dev/dri/card1",)), links=links)
            )
        ),
        features=draw(st.dictionaries(st.sampled_from(FEATURES), st.sampled_from(((), ("/dev/gdrdrv",))))),
        gds_files=draw(st.sampled_from(((), ("/run/udev",), ("/run/udev", "/etc/cufile.json")))),
        extra_nodes=draw(st.sampled_from(((), ("/dev/nvmap",)))),
        prior=prior,
    )


def documents(wish, found):
    return {name: json.loads(encode_spec(spec)) for name, spec in build_specs(wish, found).items()}


@given(wish=wishes, found=nodes())
def test_runtimes_take_every_spec_in_its_version_and_refuse_it_in_a_lower_one(wish, found):
    for name, document in documents(wish, found).items():
        check_spec(document, where=name)
        assert document["cdiVersion"] == find_minimum_version(document)
        lower = KNOWN_VERSIONS[: KNOWN_VERSIONS.index(document["cdiVersion"])]
        for version in lower:
            with pytest.raises(SpecError, match="is below"):
                check_spec(document | {"cdiVersion": version})


@pytest.mark.requirement(33)
@given(wish=wishes, found=nodes())
def test_every_name_resolves_or_there_is_a_reason(wish, found):
    specs = build_specs(wish, found)
    with tempfile.TemporaryDirectory(prefix="nv", dir="/tmp") as place:
        for name, spec in specs.items():
            (Path(place) / name).write_bytes(encode_spec(spec))
        usable = set(load_names(Path(place)))
        assert usable == {name for spec in specs.values() for name in names_of(spec)}
        resolve(sorted(usable), Path(place))

    wished = {qualify(CdiClass.GPU, name) for device in wish.devices for name in device.names}
    wished |= {qualify(CdiClass.IMEX_CHANNEL, str(number)) for number in wish.imex_channels}
    wished |= {  # of the others containers do without
        qualify(feature, "all")
        for feature in wish.features
        if any(not is_missing(found, path) for path in found.features.get(feature, ()))
    }
    assert wished <= usable or find_problems(wish, found)
    kept = {
        qualify(CdiClass.GPU, device.name)
        for device in (found.prior[CdiClass.GPU].devices if CdiClass.GPU in found.prior else ())
        if device.name in wish.keep
    }
    assert kept <= usable


@pytest.mark.requirement(46)
@given(wish=wishes, found=nodes())
def test_what_is_kept_is_kept_word_for_word_and_nothing_else_of_before_is(wish, found):
    """What is new is told from what is old by its nodes, which no new entry has."""
    specs = build_specs(wish, found)
    for cdi_class in CdiClass:
        before = {device.name: device for device in found.prior[cdi_class].devices} if cdi_class in found.prior else {}
        spec = specs.get(cdi_class.file_name)
        now = {device.name: device for device in spec.devices} if spec else {}
        old = {
            name: one
            for name, one in now.items()
            if any(n.path == "/dev/old" for n in one.container_edits.device_nodes)
        }
        assert old.items() <= before.items()
        named = {name for device in wish.devices for name in device.names}
        if cdi_class is CdiClass.GPU:
            assert set(old) <= wish.keep | named
            assert wish.keep & set(before) <= set(now)
        elif cdi_class in wish.keep_classes:
            assert set(before) <= set(now)


@given(wish=wishes, found=nodes())
def test_no_device_node_appears_that_nobody_wished_or_that_is_missing(wish, found):
    missing = {path for path, one in found.nodes.items() if one is None}
    wished = {path for device in wish.devices for path in device.nodes}
    wished |= {path for one in found.displays.values() for path in one.nodes}
    wished |= {*found.control_nodes, *found.extra_nodes, CHANNEL, "/dev/gdrdrv", "/dev/old"}
    for document in documents(wish, found).values():
        everything = [document["containerEdits"], *(device["containerEdits"] for device in document["devices"])]
        given_out = [node["path"] for one in everything for node in one.get("deviceNodes", [])]
        assert set(given_out) <= wished - missing
        for one in everything:
            places = [node["path"] for node in one.get("deviceNodes", [])]
            places += [mount["containerPath"] for mount in one.get("mounts", [])]
            assert len(places) == len(set(places))


@given(wish=wishes, found=nodes(), view=st.sampled_from(("/driver-root", "/host-driver")))
def test_paths_are_the_hosts_and_never_this_processs_own(wish, found, view):
    wish = msgspec.structs.replace(wish, container_driver_root=view)
    root = "/run/nvidia/driver"
    wish = msgspec.structs.replace(wish, driver_root=root, dev_root=root)
    for document in documents(wish, found).values():
        assert view not in json.dumps(document)
        assert "/host-dev" not in json.dumps(document)
        for mount in document["containerEdits"].get("mounts", []):
            assert mount["hostPath"].startswith(f"{root}/")


@pytest.mark.invariant(8)
@given(wish=wishes, found=nodes())
def test_a_spec_that_was_written_is_not_written_otherwise_the_next_time(wish, found):
    """With the specs on disk that it just built, the builder has nothing to change."""
    specs = build_specs(wish, found)
    prior = {one: specs[one.file_name] for one in CdiClass if one.file_name in specs}
    again = build_specs(wish, msgspec.structs.replace(found, prior=prior))
    assert {name: encode_spec(spec) for name, spec in again.items()} == {
        name: encode_spec(spec) for name, spec in specs.items()
    }
