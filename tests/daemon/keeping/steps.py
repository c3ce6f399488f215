"""What may happen to MPS on a node, by the word for its kind; each kind is many things, which take turns by chance."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple, TypeAlias

from nvdp.model.mps import Phase
from nvdp.simulate.kubelet import Kubelet
from nvdp.simulate.mps.clients import end_server
from tests.daemon.keeping.node import Node, wait_new_child
from tests.daemon.keeping.wish import ALREADY_EXCLUSIVE, RESOURCES
from tests.daemon.node import healthy
from tests.daemon.process import LIMIT_S, Daemon, wait_until

_SILENT_S: Final = 8.0  # until a silent daemon is known to be one, and everybody has heard


class Effect(NamedTuple):
    """What a step has concerned: the daemons that may have become others by it, and those whose clients it may have
    cut. ``is_open``: a process stays away until the next step is done.
    """

    concerned: frozenset[str] = frozenset()
    cut: frozenset[str] = frozenset()
    is_open: bool = False


NOTHING: Final = Effect()
Step: TypeAlias = Callable[[Node], Effect]


# --- kill


def kill_keeper(node: Node) -> Effect:
    """Kill ``nvdp mps``: its daemons live on."""
    node.end_keeper(signal.SIGKILL)
    return Effect(is_open=node.chance.random() < 0.5)


def kill_plugin(node: Node) -> Effect:
    node.end_plugin(signal.SIGKILL)
    return Effect(is_open=node.chance.random() < 0.5)


def kill_both(node: Node) -> Effect:
    node.end_plugin(signal.SIGKILL)
    return kill_keeper(node)


def kill_daemon(node: Node) -> Effect:
    """Kill a control daemon, and with it its clients; half of the time while nobody looks after it."""
    daemons = node.list_daemons()
    if not daemons:
        return NOTHING
    resource = node.chance.choice(sorted(daemons))
    if node.chance.random() < 0.5:
        node.end_keeper(signal.SIGKILL)
    pid = daemons[resource].pid
    assert pid is not None
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    return _replaced(resource)


def let_daemon_die(node: Node) -> Effect:
    """A control daemon ends by itself, and with it its clients."""
    ready = node.list_ready()
    if not ready:
        return NOTHING
    resource = node.chance.choice(ready)
    pid = node.list_daemons()[resource].pid
    assert pid is not None
    node.mps.orders.die(pid, code=3, text="out of order")
    wait_until(lambda: (one := node.list_daemons().get(resource)) is None or one.pid != pid, what="its end")
    return _replaced(resource)


def end_a_server(node: Node) -> Effect:
    """A server ends, and its clients; its control daemon stays."""
    resources = sorted({held.resource for held in node.pods if held.by_mps})
    if not resources:
        return NOTHING
    resource = node.chance.choice(resources)
    clients = [held.client for held in node.holds(resource) if held.client is not None]
    with contextlib.suppress(OSError):  # there is no daemon just now
        end_server(node.mps.pipe(resource), 1)
        wait_until(lambda: all(client.is_cut for client in clients), what="the end of its clients")
    return Effect(cut=frozenset({resource}))


def kill_nvml_child(node: Node) -> Effect:
    """The child of one of the two processes dies in the driver."""
    for daemon in _shuffle_parents(node):
        for child in daemon.children:
            child.kill()
    return NOTHING


# --- stop


def stop_keeper(node: Node) -> Effect:
    """Stop ``nvdp mps``, which ends everything, and starts again after the next step."""
    node.end_keeper(node.chance.choice([signal.SIGTERM, signal.SIGINT]))
    return _all_replaced(is_open=True)


def stop_plugin(node: Node) -> Effect:
    node.end_plugin(signal.SIGTERM)
    return Effect(is_open=True)


def turn_pause(node: Node) -> Effect:
    """Pause by the file, or the end of it. What nobody holds is ended."""
    node.publish(is_paused=not node.wish.is_paused)
    return _unheld_replaced(node)


# --- hang


def hang_daemon(node: Node) -> Effect:
    """A control daemon does not answer until everybody has noticed. It may be replaced, if it has no clients."""
    ready = node.list_ready()
    if not ready or node.keeper is None:
        return NOTHING
    resource = node.chance.choice(ready)
    pipe = node.mps.pipe(resource)
    node.mps.orders.hang(pipe)
    try:
        is_over = _build_silence(node, resource)
        wait_until(is_over, _SILENT_S, what=f"{resource} known to be silent")
    finally:
        node.mps.orders.hang(pipe, hangs=False)
    return _replaced(resource)


def hang_nvml_child(node: Node) -> Effect:
    """The child of one of the two processes hangs in the driver, and is given up."""
    for daemon in _shuffle_parents(node):
        if daemon.children:
            child = daemon.child
            child.suspend()
            wait_new_child(daemon, child)
            break
    return NOTHING


def hang_keeper(node: Node) -> Effect:
    """``nvdp mps`` stands still for so long that what MPS shares is not on offer any more."""
    if node.keeper is None:
        return NOTHING
    node.keeper.send(signal.SIGSTOP)
    try:
        shared = {form.resource for form in node.wish.forms.values() if form.mps}
        if node.plugin is not None:
            node.kubelet.wait_until(
                lambda: not any(healthy(node.kubelet, one) for one in shared), LIMIT_S, what="nothing shared by MPS"
            )
    finally:
        node.keeper.send(signal.SIGCONT)
    return NOTHING


# --- reconfigure


def change_limits(node: Node) -> Effect:
    node.publish(shares=6 - node.wish.shares)
    return NOTHING


def change_cards(node: Node) -> Effect:
    """A card less for a daemon, or one more: it leaves to be whole."""
    node.publish(is_less=not node.wish.is_less)
    return NOTHING


def change_kind(node: Node) -> Effect:
    """From MPS to time-slicing under one name, or back."""
    node.publish(is_sliced=not node.wish.is_sliced)
    return NOTHING


def change_number(node: Node) -> Effect:
    """One resource more of MPS, or one less."""
    node.publish(is_more=not node.wish.is_more)
    return NOTHING


def break_file(node: Node) -> Effect:
    """A file that nobody can use, and that nobody is to follow."""
    if not node.wish.is_paused:
        node.publish_broken()
    return NOTHING


# --- upgrade


def upgrade_keeper(node: Node) -> Effect:
    node.end_keeper(signal.SIGTERM)
    node.start_missing()
    return _all_replaced()


def upgrade_plugin(node: Node) -> Effect:
    node.end_plugin(signal.SIGTERM)
    node.start_missing()
    return NOTHING


# --- what else a node lives through


def admit_pod(node: Node) -> Effect:
    node.admit(node.chance.choice(RESOURCES))
    return NOTHING


def dismiss_pod(node: Node) -> Effect:
    if node.pods:
        node.dismiss(node.chance.choice(node.pods))
    return NOTHING


def lose_card(node: Node) -> Effect:
    node.lose(node.chance.choice([0, ALREADY_EXCLUSIVE]))
    return NOTHING


def find_card_again(node: Node) -> Effect:
    node.lose()
    return NOTHING


def restart_kubelet(node: Node) -> Effect:
    kubelet: Kubelet = node.kubelet
    kubelet.restart()
    return NOTHING


STEPS: Final[Mapping[str, tuple[Step, ...]]] = {
    "kill": (kill_keeper, kill_daemon, kill_plugin, let_daemon_die, kill_nvml_child, end_a_server, kill_both),
    "stop": (stop_keeper, turn_pause, stop_plugin),
    "hang": (hang_daemon, hang_nvml_child, hang_keeper),
    "reconfigure": (change_limits, change_kind, change_cards, change_number, break_file),
    "upgrade": (upgrade_keeper, upgrade_plugin),
}
SURROUNDINGS: Final[tuple[Step, ...]] = (admit_pod, dismiss_pod, lose_card, find_card_again, restart_kubelet)


def _replaced(resource: str) -> Effect:
    return Effect(concerned=frozenset({resource}), cut=frozenset({resource}))


def _all_replaced(*, is_open: bool = False) -> Effect:
    return Effect(concerned=frozenset(RESOURCES), cut=frozenset(RESOURCES), is_open=is_open)


def _unheld_replaced(node: Node) -> Effect:
    return Effect(concerned=frozenset(one for one in RESOURCES if not node.holds(one)))


def _shuffle_parents(node: Node) -> list[Daemon]:
    parents = [daemon for daemon in (node.keeper, node.plugin) if daemon is not None]
    return node.chance.sample(parents, len(parents))[:1]


def _build_silence(node: Node, resource: str) -> Callable[[], bool]:
    """Whether everybody who runs knows of the silence, or has replaced the daemon already."""
    pid = node.list_daemons()[resource].pid

    def is_known() -> bool:
        daemon = node.list_daemons().get(resource)
        if daemon is None or daemon.pid != pid:
            return True
        is_told = node.plugin is None or not healthy(node.kubelet, resource)
        return daemon.phase is not Phase.READY and is_told

    return is_known
