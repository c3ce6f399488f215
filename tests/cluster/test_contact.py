"""What is told of the API server as a whole: once when it is lost, once when it is back, and each refusal."""

from __future__ import annotations

import pytest

from nvdp.cluster.contact import NOT_FOLLOWED, Contact
from nvdp.errors import ClusterFault
from nvdp.model.reasons import Reason

DOWN = ClusterFault.UNREACHABLE


class Scene:
    def __init__(self) -> None:
        self.now = 100.0
        self.lines: list[tuple[Reason, str]] = []
        self.contact = Contact(lambda reason, text, **_: self.lines.append((reason, text)), clock=lambda: self.now)

    @property
    def reasons(self) -> list[Reason]:
        return [reason for reason, _ in self.lines]


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_a_server_is_lost_after_a_minute_and_one_line_tells_so(scene: Scene) -> None:
    for name in ("node", "config"):
        scene.contact.note_failed(name, DOWN, f"{name}: refused")
    assert scene.contact.find_due() == 160.0
    scene.now = 159.0
    scene.contact.look()
    assert scene.lines == []
    scene.now = 160.0
    scene.contact.look()
    scene.now = 500.0
    scene.contact.note_failed("node", DOWN, "node: refused otherwise")
    scene.contact.look()
    assert scene.reasons == [Reason.API_SERVER_LOST]
    assert scene.lines[0][1].startswith("node: refused. The node stays as it is")
    assert scene.contact.find_due() is None


def test_it_is_back_when_every_watch_hears_it(scene: Scene) -> None:
    for name in ("node", "config"):
        scene.contact.note_failed(name, DOWN, "refused")
    scene.now = 170.0
    scene.contact.look()
    scene.contact.note_heard("node")
    assert scene.reasons == [Reason.API_SERVER_LOST]
    scene.now = 190.0
    scene.contact.note_heard("config")
    assert scene.lines[1] == (Reason.API_SERVER_REACHED, "the API server answers again, after 90 s")


def test_what_was_over_within_a_minute_is_not_told(scene: Scene) -> None:
    scene.contact.note_failed("node", DOWN, "refused")
    scene.now = 159.0
    scene.contact.note_heard("node")
    scene.now = 300.0
    scene.contact.look()
    assert scene.lines == []


def test_a_refusal_is_told_at_once_and_each_object_once(scene: Scene) -> None:
    for _ in range(3):
        for name in ("node", "config"):
            scene.contact.note_failed(name, ClusterFault.DENIED, f"watch {name}: not allowed")
    assert [text.partition(":")[0] for _, text in scene.lines] == ["watch node", "watch config"]


def test_a_server_that_refuses_again_after_it_was_back_is_told_again(scene: Scene) -> None:
    for _ in range(2):
        scene.contact.note_failed("node", ClusterFault.DENIED, "not allowed")
        scene.contact.note_heard("node")
    assert scene.reasons == [Reason.API_SERVER_LOST, Reason.API_SERVER_REACHED] * 2


def test_an_outage_that_turns_out_to_be_a_refusal_is_told_as_one(scene: Scene) -> None:
    scene.contact.note_failed("node", DOWN, "refused")
    scene.now = 170.0
    scene.contact.look()
    scene.contact.note_failed("node", ClusterFault.DENIED, "not allowed")
    assert [text.partition(".")[0] for _, text in scene.lines] == ["refused", "not allowed"]


def test_what_is_lost_is_a_trouble_until_it_is_back(scene: Scene) -> None:
    scene.contact.note_failed("node", DOWN, "watch node: refused")
    assert scene.contact.trouble is None, "a minute without an answer is none"
    scene.now = 160.0
    scene.contact.look()
    trouble = scene.contact.trouble
    assert trouble is not None
    assert (trouble.reason, trouble.text) == ("APIServerLost", f"watch node: refused; {NOT_FOLLOWED}")
    scene.contact.note_heard("node")
    assert scene.contact.trouble is None


def test_a_right_that_is_missing_is_the_trouble_that_is_shown(scene: Scene) -> None:
    scene.contact.note_failed("node", DOWN, "watch node: refused")
    scene.contact.note_failed("configmap", ClusterFault.DENIED, "watch configmap: not allowed")
    trouble = scene.contact.trouble
    assert trouble is not None
    assert trouble.text.startswith("watch configmap: not allowed;")
