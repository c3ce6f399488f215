"""What connects the GPUs of a node, as the child reads it from a simulated one."""

from __future__ import annotations

import itertools
import textwrap

import pytest

from nvdp.model.topology import Ancestor, Connection
from nvdp.nvml.frames import Scan, Scanned
from nvdp.nvml.outcomes import Died, Hung, Outcome
from nvdp.nvml.simulated.export import build_node_file

ANCESTOR_CALL, TYPE_CALL = "nvmlDeviceGetTopologyCommonAncestor", "nvmlDeviceGetNvLinkRemoteDeviceType"
PAIRS = "nvlinks: [{gpus: [0, 1], links: 4}, {gpus: [2, 3], links: 4}]"


class Cards:
    """A simulated machine of up to six cards, and the child that scans it."""

    def __init__(self, directory, asking) -> None:
        self.path = directory / "node.yaml"
        self._asking = asking
        self._client = None

    def write(self, text: str, *, count: int = 4, facts: str = "") -> None:
        numa = ", ".join(str(place // 2) for place in range(count))
        uuids = ", ".join(f"GPU-{place}" for place in range(count))
        card = f"{{model: h100-sxm5-80gb, count: {count}, uuid: [{uuids}], numa: [{numa}]{facts}}}"
        fresh = self.path.with_suffix(".new")
        fresh.write_text(f"gpus:\n- {card}\n{textwrap.dedent(text)}\n")
        fresh.rename(self.path)

    def ask(self, *, limit_s: float = 10.0, **command) -> Outcome:
        if self._client is None:
            self._client = self._asking(simulated=str(self.path)).spawn()
        return self._client.call(Scan(**command), limit_s=limit_s)

    def scan(self, **command) -> Scanned:
        scanned = self.ask(**command)
        assert isinstance(scanned, Scanned)
        return scanned

    def links(self, **command) -> dict[tuple[int, int], int]:
        """NVLinks by pair, over switches or not, where there are any."""
        return {
            (int(one.a[-1]), int(one.b[-1])): one.nvlinks + one.fabric_links
            for one in self.scan(**command).inventory.connections
            if one.nvlinks + one.fabric_links
        }

    def ancestors(self, **command) -> dict[tuple[int, int], Ancestor | None]:
        connections = self.scan(**command).inventory.connections
        return {(int(one.a[-1]), int(one.b[-1])): one.ancestor for one in connections}


@pytest.fixture
def cards(tmp_path, asking) -> Cards:
    return Cards(tmp_path, asking)


def test_direct_links_are_counted_for_the_two_that_they_connect(cards) -> None:
    cards.write(PAIRS)
    scanned = cards.scan()
    pairs = list(itertools.combinations([f"GPU-{place}" for place in range(4)], 2))
    assert [(one.a, one.b) for one in scanned.inventory.connections] == pairs
    assert scanned.inventory.connections[0] == Connection(a="GPU-0", b="GPU-1", ancestor=Ancestor.NODE, nvlinks=4)
    assert cards.links() == {(0, 1): 4, (2, 3): 4}


def test_gpus_on_switches_are_connected_by_all_the_links_that_both_have_to_them(cards) -> None:
    cards.write("conditions: [{gpu: 2, linksDown: [0, 1, 17]}]", facts=", nvswitchLinks: 18")
    assert cards.links() == {(0, 1): 18, (0, 2): 15, (0, 3): 18, (1, 2): 15, (1, 3): 18, (2, 3): 15}


def test_direct_links_and_those_over_switches_count_together(cards) -> None:
    cards.write("nvlinks: [{gpus: [0, 1], links: 2}]", count=3, facts=", nvswitchLinks: 6")
    (first, *_) = cards.scan().inventory.connections
    assert (first.nvlinks, first.fabric_links) == (2, 6)
    assert cards.links() == {(0, 1): 8, (0, 2): 6, (1, 2): 6}


def test_gpus_of_different_cliques_are_on_no_common_fabric(cards) -> None:
    cliques = "\n".join(f"- {{gpu: {place}, fabric: {{clique: {1 + place // 2}}}}}" for place in range(4))
    cards.write(f"conditions:\n{cliques}", facts=", nvswitchLinks: 18")
    assert cards.links() == {(0, 1): 18, (2, 3): 18}


def test_cards_before_hopper_tell_no_fabric_and_are_on_one_all_the_same(cards) -> None:
    cards.path.write_text("gpus: [{model: a100-sxm4-80gb, count: 2, uuid: [GPU-0, GPU-1], nvswitchLinks: 12}]\n")
    assert cards.links() == {(0, 1): 12}


def test_a_link_that_goes_down_counts_no_more_until_it_is_up_again(cards) -> None:
    cards.write(PAIRS)
    assert cards.links() == {(0, 1): 4, (2, 3): 4}
    cards.write(f"{PAIRS}\nconditions: [{{gpu: 1, linksDown: [0]}}, {{gpu: 2, linksDown: [0, 1, 2, 3]}}]")
    assert cards.links() == {(0, 1): 3}
    cards.write(PAIRS)
    assert cards.links() == {(0, 1): 4, (2, 3): 4}


def test_every_common_ancestor_is_told_in_its_word(cards) -> None:
    words = [ancestor.value for ancestor in Ancestor]
    places = list(itertools.combinations(range(4), 2))
    cards.write(
        f"ancestors: {{{', '.join(f'{word}: [{list(pair)}]' for word, pair in zip(words, places, strict=True))}}}"
    )
    assert cards.ancestors() == dict(zip(places, Ancestor, strict=True))


def test_switches_and_processors_are_common_ancestors(cards) -> None:
    cards.write("pcieSwitches: [[0, 1]]")
    assert cards.ancestors() == {
        (0, 1): Ancestor.SINGLE,
        **dict.fromkeys([(0, 2), (0, 3), (1, 2), (1, 3)], Ancestor.SYSTEM),
        (2, 3): Ancestor.NODE,
    }


def test_gpus_in_mig_mode_are_connected_with_none(cards) -> None:
    cards.write(f"{PAIRS}\nlayouts: [{{gpu: 1, mig: enabled}}]")
    assert cards.ancestors().keys() == {(0, 2), (0, 3), (2, 3)}
    assert cards.links() == {(2, 3): 4}


def test_what_is_wired_is_asked_once_in_a_session_and_for_a_gpu_that_comes_back(cards) -> None:
    cards.write(PAIRS, facts=", nvswitchLinks: 2")
    first = cards.scan().inventory
    # Whoever asked again would be told this.
    wrong = f"faults: [{{call: {ANCESTOR_CALL}, error: 999}}, {{call: {TYPE_CALL}, error: 999}}]"
    cards.write(f"{PAIRS}\n{wrong}", facts=", nvswitchLinks: 2")
    assert cards.scan().inventory == first
    cards.write(f"{PAIRS}\n{wrong}\nlost: [1]", facts=", nvswitchLinks: 2")
    assert cards.ancestors().keys() == {(0, 2), (0, 3), (2, 3)}
    cards.write(f"{PAIRS}\n{wrong}", facts=", nvswitchLinks: 2")
    assert cards.scan().inventory == first


@pytest.mark.invariant(5)
@pytest.mark.parametrize("error", ["Unknown", "NotSupported", "InvalidArgument", "GpuIsLost", "FunctionNotFound"])
def test_a_common_ancestor_that_cannot_be_told_costs_nothing_else(cards, error) -> None:
    cards.write(f"{PAIRS}\nfaults: [{{call: {ANCESTOR_CALL}, gpu: 1, error: {error}}}]")
    scanned = cards.scan()
    assert [gpu.fault for gpu in scanned.inventory.gpus] == [None] * 4
    assert all(not vitals.errors for vitals in scanned.vitals.values())
    unknown = {pair for pair, ancestor in cards.ancestors().items() if ancestor is None}
    assert unknown == {(0, 1), (1, 2), (1, 3)}
    assert cards.links() == {(0, 1): 4, (2, 3): 4}


def test_a_common_ancestor_that_could_not_be_told_is_asked_again(cards) -> None:
    cards.write(f"faults: [{{call: {ANCESTOR_CALL}, gpu: 1, error: 999}}]")
    assert None in cards.ancestors().values()
    cards.write("")
    assert None not in cards.ancestors().values()


@pytest.mark.invariant(5)
@pytest.mark.parametrize("error", ["Unknown", "NotSupported", "FunctionNotFound"])
def test_a_link_that_does_not_tell_where_it_leads_counts_as_leading_to_no_switch(cards, error) -> None:
    cards.write(f"{PAIRS}\nfaults: [{{call: {TYPE_CALL}, gpu: 1, error: {error}}}]", facts=", nvswitchLinks: 2")
    scanned = cards.scan()
    assert [gpu.fault for gpu in scanned.inventory.gpus] == [None] * 4
    assert all(not vitals.errors for vitals in scanned.vitals.values())
    assert cards.links() == {(0, 1): 4, (0, 2): 2, (0, 3): 2, (2, 3): 6}


@pytest.mark.parametrize("call", ["nvmlDeviceGetNvLinkState", "nvmlDeviceGetNvLinkRemotePciInfo"])
def test_links_that_cannot_be_read_do_not_count(cards, call) -> None:
    cards.write(f"{PAIRS}\nfaults: [{{call: {call}, gpu: 1, error: 999}}]")
    assert cards.links() == {(2, 3): 4}


def test_a_compiled_library_is_asked_as_its_functions_are_declared(fake_driver, asking) -> None:
    fake_driver.install()
    vitals = [
        f"vital {card} {word}"
        for card in range(4)
        for word in ("links 4", "to_switch 12", "fabric_state 3", "fabric_status 0", f"ancestor {card * 10}")
    ]
    fake_driver.configure("cards 0 1 2 3", *vitals, *(f"vital {card} fabric_clique 7" for card in (0, 1, 2)))
    scanned = asking(driver_root=str(fake_driver.root)).scan()
    assert isinstance(scanned, Scanned)
    assert scanned.vitals[scanned.inventory.gpus[1].uuid].fabric_clique == f"{'0' * 31}1/7"
    assert [(one.ancestor, one.nvlinks, one.fabric_links) for one in scanned.inventory.connections] == [
        (Ancestor.INTERNAL, 2, 2),  # the library says of every link that it leads to the card beside
        (Ancestor.INTERNAL, 0, 2),
        (Ancestor.INTERNAL, 0, 0),
        (Ancestor.SINGLE, 0, 2),
        (Ancestor.SINGLE, 0, 0),
        (Ancestor.MULTIPLE, 2, 0),
    ]


def test_an_exported_node_is_connected_as_the_real_one(cards, tmp_path, asking) -> None:
    cards.write(
        f"""\
        {PAIRS}
        pcieSwitches: [[0, 1], [4, 5]]
        ancestors: {{host-bridge: [[0, 2, 3], [2, 5]], unknown: [[1, 4]], system: [[2, 4]]}}
        """,
        count=6,
        facts=", nvswitchLinks: 6",
    )
    real = cards.scan().inventory
    exported = tmp_path / "exported.yaml"
    exported.write_text(build_node_file(real))
    simulated = asking(simulated=str(exported)).scan()
    assert isinstance(simulated, Scanned)
    assert simulated.inventory == real
    assert "host-bridge:\n  - - 0\n    - 2\n    - 3\n" in exported.read_text(), "together, as they were"


@pytest.mark.invariant(5)
@pytest.mark.parametrize(("fault", "outcome"), [("hang", Hung), ("crash", Died)])
def test_a_call_about_two_gpus_that_does_not_return_is_told_and_can_be_done_without(cards, fault, outcome) -> None:
    cards.write(f"{PAIRS}\nfaults: [{{call: {ANCESTOR_CALL}, gpu: 3, {fault}: true}}]")
    assert set(cards.ancestors(ancestors=False).values()) == {None}
    assert cards.links(ancestors=False) == {(0, 1): 4, (2, 3): 4}
    told = cards.ask(limit_s=0.4)
    assert isinstance(told, outcome)
    assert told.call == ANCESTOR_CALL
