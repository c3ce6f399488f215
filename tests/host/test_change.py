"""When a change counts: the first look, stillness, and what a failing receiver is spared."""

from __future__ import annotations

import pytest

from nvdp.host.change import PathWatch


class Scene:
    """A watch over a value that the test sets."""

    def __init__(self, settle_s=lambda _before, _after: 0.0):
        self.value = "a"
        self.told = []
        self.watch = PathWatch(
            fingerprint=lambda: self.value, directories=lambda: (), on_change=self.told.append, settle_s=settle_s
        )

    def look(self, now, value=None):
        self.value = value or self.value
        return self.watch.look(now)


def test_the_first_look_passes_on_what_it_sees_and_then_only_changes_count():
    scene = Scene()
    for now, value in enumerate("aabba"):
        assert scene.look(now, value) is None
    assert scene.told == ["a", "b", "a"]


def test_a_change_is_passed_on_when_it_has_stood_still():
    scene = Scene(settle_s=lambda _before, _after: 0.25)
    scene.look(0.0)
    assert scene.look(10.0, "half") == 10.25
    assert scene.look(10.125, "half") == 10.25
    assert scene.look(10.125, "whole") == 10.375
    assert scene.look(10.25) == 10.375
    assert scene.told == ["a"]
    assert scene.look(10.375) is None
    assert scene.told == ["a", "whole"]


def test_a_change_that_is_undone_before_it_has_settled_is_no_change():
    scene = Scene(settle_s=lambda _before, _after: 0.5)
    scene.look(0.0)
    scene.look(1.0, "half")
    assert scene.look(1.25, "a") is None
    assert scene.look(9.0) is None
    assert scene.told == ["a"]


def test_what_never_stands_still_is_passed_on_after_two_seconds_all_the_same():
    scene = Scene(settle_s=lambda _before, _after: 0.5)
    scene.look(0.0)
    for step in range(1, 9):
        scene.look(10 + step / 4, f"version {step}")
    assert scene.told == ["a"]
    scene.look(12.25, "version 9")
    assert scene.told == ["a", "version 9"]
    assert scene.look(12.5, "version 10") == 13.0  # and its successor has its own two seconds


def test_the_time_to_settle_may_depend_on_what_changed():
    scene = Scene(settle_s=lambda before, after: 0.0 if (before, after) == ("a", "swapped") else 1.0)
    scene.look(0.0)
    assert scene.look(1.0, "swapped") is None
    assert scene.look(2.0, "other") == 3.0
    assert scene.told == ["a", "swapped"]


def test_a_receiver_that_fails_is_not_called_again_until_the_value_changes_or_is_forgotten():
    calls = []

    def fail(value):
        calls.append(value)
        raise RuntimeError(value)

    watch = PathWatch(fingerprint=lambda: "a", directories=lambda: (), on_change=fail)
    with pytest.raises(RuntimeError):
        watch.look(0.0)
    assert watch.look(1.0) is None
    watch.forget()
    with pytest.raises(RuntimeError):
        watch.look(2.0)
    assert calls == ["a", "a"]
