"""What a change of the CDI specs is called in the log."""

from __future__ import annotations

import pytest

from nvdp.model.cdi import CdiClass
from nvdp.model.cdi_spec import CdiSpec, SpecDevice, SpecEdits
from nvdp.planning.cdi_news import build_news, list_names

GPU, GDS = CdiClass.GPU.file_name, CdiClass.GDS.file_name


def specs(*names: str, gds: bool = False):
    devices = tuple(SpecDevice(name=name, container_edits=SpecEdits(env=("A=B",))) for name in names)
    found = {CdiClass.GPU: CdiSpec(cdi_version="0.3.0", kind=CdiClass.GPU.kind, devices=devices)} if names else {}
    if gds:
        found[CdiClass.GDS] = CdiSpec(cdi_version="0.3.0", kind=CdiClass.GDS.kind, devices=devices[:1])
    return found


@pytest.mark.parametrize(
    ("before", "after", "written", "removed", "text"),
    [
        (specs(), specs("b", "a"), [GPU], [], f"wrote {GPU}: new gpu=a, gpu=b"),
        (specs("a"), specs("b"), [GPU], [], f"wrote {GPU}: new gpu=b; gone gpu=a"),
        (
            specs("a"),
            specs("a"),
            [GPU],
            [],
            f"wrote {GPU}: the same names, as the driver's files or nodes have changed",
        ),
        (specs("a", gds=True), specs(), [], [GPU, GDS], f"removed {GPU}, {GDS}: gone gds=a, gpu=a"),
        (specs("a", gds=True), specs("b"), [GPU], [GDS], f"wrote {GPU}, removed {GDS}: new gpu=b; gone gds=a, gpu=a"),
        (specs(), specs(*"abcdef"), [GPU], [], f"wrote {GPU}: new gpu=a, gpu=b, gpu=c, gpu=d and 2 more"),
    ],
)
def test_it_says_which_files_and_which_names_are_other_than_before(before, after, written, removed, text):
    news = build_news(before, after, written=written, removed=removed)
    assert (news.text, news.devices) == (text, len(list_names(after)))
