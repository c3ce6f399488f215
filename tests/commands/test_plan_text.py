"""The sentences of ``nvdp plan`` for everything that can become of a GPU and of what pods hold."""

from __future__ import annotations

import pytest

from nvdp.app.preview import Outlook, Teller
from nvdp.commands.plan_text import build_text
from nvdp.planning.assignment import Form
from nvdp.planning.changes import Running, find_changes
from nvdp.planning.comparison import compare
from tests.planning.test_changes import offered, preview_of, replicas
from tests.planning.values import GPU, SHARED, holding, parse, sliced, uuid

SEVEN = ", ".join(f"team/p{number}" for number in range(5)) + " and 2 more"
WHOLE, SLICED = Form(GPU, shared=False), Form(GPU, shared=True)
CARD = uuid(0)  # the same first digits as the others: shown in full


def lines(preview, running, *, told_by=Teller.NVDP, advertised=None):
    outlook = Outlook(
        node_name="gpu-a3",
        preview=preview,
        changes=find_changes(preview, running),
        told_by=told_by,
        comparison=None if advertised is None else compare(preview, advertised),
    )
    return build_text(outlook).splitlines()


@pytest.mark.parametrize(
    ("config", "before", "pods", "said"),
    [
        (
            sliced(4, rename=True),
            offered(WHOLE, 1, 0, 1),
            [holding(CARD, "a")],
            f"{CARD}  {GPU} → {SHARED}  waits: held by team/a (allocation.modeChange: when-free)",
        ),
        (
            sliced(4, rename=True, more="allocation: {modeChange: immediate}"),
            offered(WHOLE, 1, 0, 1),
            [holding(CARD, "a")],
            f"{CARD}  {GPU} → {SHARED}  at once, though held by team/a (allocation.modeChange: immediate)",
        ),
        (
            parse(),
            offered(SLICED, 9, 0, 1),
            [holding(f"{CARD}::{n}", f"p{n}") for n in range(7)],
            f"{CARD}  {GPU} (shared) → {GPU} (whole)  waits: held by {SEVEN} (allocation.modeChange: when-free)",
        ),
        (
            parse("devices: {exclude: [0]}"),
            offered(WHOLE, 1, 0, 1),
            [holding(CARD, "a")],
            f"{CARD}  {GPU} → not on offer  what is held stays listed, Unhealthy, until the end of team/a",
        ),
        (parse("devices: {exclude: [0]}"), offered(WHOLE, 1, 0, 1), [], f"{CARD}  {GPU} → not on offer  at once"),
        (parse(), offered(WHOLE, 1, 1), [], f"{CARD}  not on offer → {GPU}  at once"),
        (
            sliced(2),
            offered(SLICED, 9, 0, 1),
            [holding(f"{CARD}::{n}", f"p{n}") for n in (3, 5, 8)],
            f"{CARD}  {GPU}, fewer replicas  what is held stays listed, Unhealthy, until the end of team/p8",
        ),
    ],
)
def test_what_becomes_of_a_card_is_one_line(config, before, pods, said):
    shown = [" ".join(line.split()) for line in lines(preview_of(config, 2, *pods), before)]
    assert " ".join(said.split()) in shown


def test_numbers_are_aligned_and_say_who_waits_in_vain():
    shown = lines(preview_of(sliced(4, rename=True), 2), offered(WHOLE, 1, 0, 1))
    assert shown[-2:] == [
        "nvidia.com/gpu         2 → 0  pods that ask for it stay Pending",
        "nvidia.com/gpu.shared  0 → 8",
    ]


def test_no_change_is_said_in_so_many_words():
    assert lines(preview_of(parse(), 2), offered(WHOLE, 1, 0, 1))[-2:] == [
        "CHANGES AGAINST WHAT RUNS NOW",
        "nothing changes",
    ]


def test_who_tells_is_said_where_it_is_not_the_daemon():
    titles = [lines(preview_of(parse(), 1), Running(), told_by=teller)[5] for teller in Teller]
    assert titles == [
        "CHANGES AGAINST WHAT RUNS NOW",
        "CHANGES AGAINST WHAT RUNS NOW  (by the kubelet's word, without what is Unhealthy)",
        "CHANGES AGAINST WHAT RUNS NOW  (by the kubelet's checkpoint, without what is Unhealthy)",
    ]


def test_a_comparison_ends_with_what_it_means_for_pods():
    now = {GPU: frozenset(replicas(0, 4))}
    same = lines(preview_of(sliced(4), 1), None, advertised=now)
    assert same[-1] == "the same 4 IDs under the same names: nothing changes for pods that run or wait"
    idle = lines(preview_of(sliced(2), 1), None, advertised=now)
    assert idle[-1] == "no ID that a pod holds changes: they all run on, also over a restart of the kubelet"
    pods = [holding(f"{CARD}::{n}", "a") for n in range(4)]
    held = lines(preview_of(sliced(2), 1, *pods), None, advertised=now)
    assert held[-2].split("  ") == [
        "team/a",
        GPU,
        f"{CARD}::2 and 1 more",
        "keeps running; listed as Unhealthy until the pod ends",
    ]
    assert held[-1].startswith("1 pod with an ID that does not stay Healthy: running on, ")
