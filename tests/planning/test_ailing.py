"""Which of a GPU and its MIG devices is told of a trouble: each trouble once, and none as another one."""

from __future__ import annotations

import pytest

from nvdp.model.health import Ailment
from nvdp.model.reasons import Cause
from nvdp.planning.ailing import join_parts
from tests.planning.values import ailment, mig_uuid, uuid

CARD, FIRST, SECOND = uuid(0), mig_uuid(0, 0), mig_uuid(0, 1)
PARTS = {CARD: (FIRST, SECOND)}
LOST = ailment(Cause.LOST)


def xid(number):
    return Ailment(cause=Cause.XID, text=f"XID {number}", since=0.0, xid=number)


@pytest.mark.parametrize(
    ("ailing", "told"),
    [
        ({CARD: LOST, FIRST: LOST, SECOND: LOST}, {CARD}),
        ({CARD: xid(79), FIRST: xid(79), SECOND: xid(79)}, {CARD}),
        ({CARD: xid(48), FIRST: xid(48)}, {FIRST}),
        ({CARD: xid(48), FIRST: xid(48), SECOND: xid(79)}, {FIRST, SECOND}),
        ({CARD: xid(48), FIRST: xid(48), SECOND: LOST}, {FIRST, SECOND}),
    ],
    ids=["out of reach", "one for all", "of one", "of one, and another one of all", "of different kinds"],
)
def test_what_all_parts_have_is_told_of_their_card_and_what_they_do_not_share_of_each(ailing, told):
    joined = join_parts(ailing, PARTS)

    assert joined.keys() == told
    assert all(joined[one] == ailing[one] for one in told)
