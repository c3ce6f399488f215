"""Cards in every form that a file can give them, and what the kubelet must see of each while pods hold some.

Cards that may be whole and cards that may be slices never have one name, so cards come in families: each has a product
of its own, and with it a plain name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from nvdp.simulate.kubelet import Kubelet, Pod
from tests.daemon.node import build_config, gpu_uuid
from tests.daemon.process import LIMIT_S


class Offer(NamedTuple):
    """A card under one name: whole, or in so many pieces."""

    resource: str
    shared: bool
    count: int

    @property
    def form(self) -> tuple[str, bool]:
        return self.resource, self.shared


class Form(NamedTuple):
    """What a file says of a card. ``plain_is_shared``: what it makes of the family's plain name, None if nothing."""

    plain_is_shared: bool | None
    suffix: str = ""
    count: int = 0
    takes_pods: bool = True

    def offer(self, family: str) -> Offer | None:
        """None where the card is not on offer at all."""
        return Offer(f"nvidia.com/{family}{self.suffix}", self.count > 1, self.count) if self.count else None


FORMS = {
    "whole": Form(plain_is_shared=False, count=1),
    "cordoned": Form(plain_is_shared=False, count=1, takes_pods=False),
    "sliced": Form(plain_is_shared=True, count=2),
    "sliced by three": Form(plain_is_shared=True, count=3),
    "renamed": Form(plain_is_shared=None, suffix=".shared", count=2),
    "mps": Form(plain_is_shared=None),
    "excluded": Form(plain_is_shared=None),
}
FAMILIES = ("ww", "ws", "sw", "ss")  # by what the plain name is before and after: whole or sliced
RESOURCES = tuple(f"nvidia.com/{family}{suffix}" for family in FAMILIES for suffix in ("", ".shared", ".mps"))


def build_file(cards: Mapping[int, tuple[str, str]], *, sliced: Iterable[str], **allocation: Any) -> dict[str, Any]:
    """A file that gives each card, by number, of its family its form; in ``sliced`` families plain names are slices."""
    slices, mps = [], []
    for family in FAMILIES:
        name = f"nvidia.com/{family}"
        of = {
            form: [gpu_uuid(card) for card, (own, given) in cards.items() if (own, given) == (family, form)]
            for form in FORMS
        }
        if family in sliced:
            slices.append({"name": name, "replicas": 2})
        if of["sliced by three"]:
            slices.append({"name": name, "devices": of["sliced by three"], "replicas": 3})
        if of["renamed"]:
            slices.append({"name": name, "rename": f"{name}.shared", "devices": of["renamed"], "replicas": 2})
        if of["mps"]:
            mps.append({"name": name, "rename": f"{name}.mps", "devices": of["mps"], "replicas": 2})
    listed = {
        key: [gpu_uuid(card) for card, (_, form) in cards.items() if form == word]
        for key, word in (("exclude", "excluded"), ("cordon", "cordoned"))
    }
    sharing = {"timeSlicing": {"resources": slices}, "mps": {"resources": mps}}
    return build_config(
        devices={"removeAfter": "1s", **listed},
        resources={"gpus": [{"pattern": f"Card {family}", "name": f"nvidia.com/{family}"} for family in FAMILIES]},
        sharing={block: entries for block, entries in sharing.items() if entries["resources"]},
        allocation=allocation,
    )


def find_offers(kubelet: Kubelet) -> dict[str, set[Offer]]:
    """Everything that the kubelet may give to pods now, by card."""
    return _count(kubelet, health={"Healthy"})


def find_listed(kubelet: Kubelet) -> dict[str, set[Offer]]:
    """Everything that is listed, Healthy or not, by card."""
    return _count(kubelet, health={"Healthy", "Unhealthy"})


def wait_equal(
    kubelet: Kubelet,
    find: Callable[[Kubelet], dict[str, set[Offer]]],
    wanted: Mapping[str, set[Offer]],
    *,
    timeout_s: float = LIMIT_S,
) -> None:
    """Wait until the kubelet has this and nothing else; the AssertionError shows what differs."""
    try:
        kubelet.wait_until(lambda: find(kubelet) == wanted, timeout_s)
    except TimeoutError as error:
        found = find(kubelet)
        both = found.keys() | wanted.keys()
        wrong = {uuid: (found.get(uuid), wanted.get(uuid)) for uuid in both if found.get(uuid) != wanted.get(uuid)}
        raise AssertionError(f"by card, what is there and what is wanted: {wrong}") from error


def _count(kubelet: Kubelet, *, health: set[str]) -> dict[str, set[Offer]]:
    counts: Counter[tuple[str, str, bool]] = Counter()
    for resource in RESOURCES:
        for device, state in kubelet.devices(resource).items():
            if state.health in health:
                uuid, mark, _ = device.partition("::")
                counts[uuid, resource, bool(mark)] += 1
    offers: dict[str, set[Offer]] = {}
    for (uuid, resource, shared), count in counts.items():
        offers.setdefault(uuid, set()).add(Offer(resource, shared, count))
    return offers


def restart_kubelet(kubelet: Kubelet) -> None:
    """Restart it, and wait until it has taken in its pods again."""
    kubelet.restart()
    kubelet.wait_until(lambda: not kubelet.readmissions_pending, LIMIT_S)


class Hold(NamedTuple):
    """A pod that has an ID of a card. Times are monotonic; ``until`` is infinity while it runs."""

    pod: Pod
    resource: str
    device: str
    since: float
    until: float = float("inf")

    @property
    def uuid(self) -> str:
        return self.device.partition("::")[0]

    @property
    def form(self) -> tuple[str, bool]:
        return self.resource, "::" in self.device


def check_promises(kubelet: Kubelet, holds: Iterable[Hold], *, when_free: bool = True) -> None:
    """No list ever had a card on offer in another form than the one held then, or was without an ID held then.

    Without ``when_free`` the second alone.
    """
    every = list(holds)
    for resource in RESOURCES:
        for message in kubelet.messages(resource):
            present = [hold for hold in every if hold.since <= message.at < hold.until]
            ids = set(message.ids)
            for hold in present:
                assert hold.resource != resource or hold.device in ids, (
                    f"{hold.device} left {resource} at {message.at:.3f}; held since {hold.since:.3f}"
                )
            if when_free:
                forms = {hold.uuid: hold.form for hold in present}
                for device in message.healthy:
                    uuid, mark, _ = device.partition("::")
                    held = forms.get(uuid)
                    assert held in {None, (resource, bool(mark))}, (
                        f"{device} of {resource} was on offer at {message.at:.3f}, and is held as {held}"
                    )
