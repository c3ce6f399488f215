"""An IMEX channel that is only wished for: containers get it from the moment on that the node has it."""

from __future__ import annotations

from nvdp.model.cdi import CdiClass, qualify
from nvdp.model.reasons import Reason
from nvdp.planning.response import build_allocation
from tests.planning.values import GPU, gpu, parse, uuid
from tests.virtual.node import VirtualNode

A, B = uuid(0), uuid(1)
CHANNEL = qualify(CdiClass.IMEX_CHANNEL, "0")
WISHED = "imex: {channelIDs: [0]}\nflags: {plugin: {deviceListStrategy: [envvar, cdi-cri]}}"


def ask(node):
    """What a container gets that is given the first GPU now."""
    answer = build_allocation(node.actor(GPU).feed.current.listed, [A])
    return answer.envs.get("NVIDIA_IMEX_CHANNELS"), answer.cdi_devices


def test_a_container_gets_the_channel_once_the_node_has_it_and_the_kubelet_is_told_nothing_new():
    node = VirtualNode()
    node.writes_specs_s = 0.1
    node.see_kubelet(node.kubelet)
    node.read(parse(WISHED), text=WISHED.encode())
    node.scan(gpu(0), gpu(1))
    node.run(60.0)
    assert ask(node) == (None, (qualify(CdiClass.GPU, A),))
    (told,) = node.record.texts(Reason.CONFIG_REFERENCE_UNMATCHED)
    assert told.startswith("imex.channelIDs: /dev/nvidia-caps-imex-channels/channel0 is not on this node")
    assert node.status.unmatched == (told,)
    lists = len(node.actor(GPU).taken)

    node.scan(gpu(0), gpu(1), imex_channels=(0,))
    node.run(60.0)
    assert ask(node) == ("0", (qualify(CdiClass.GPU, A), CHANNEL))
    assert node.wishes[-1].imex_channels == (0,)
    assert len(node.actor(GPU).taken) == lists
    assert len(node.record.texts(Reason.CONFIG_REFERENCE_UNMATCHED)) == 1
    assert node.status.unmatched == ()
