"""Which resource a GPU belongs to before anything is shared."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvdp.planning.naming import name_device
from tests.planning.values import device, gpu, parse

A100, T400 = "NVIDIA A100-SXM4-80GB", "NVIDIA T400"


def named(rules, product):
    """The name's part behind the domain and the number of its rule; None for a GPU without a name."""
    entries = ", ".join(f'{{pattern: "{pattern}", name: {name}}}' for pattern, name in rules)
    name = name_device(parse(f"resources: {{gpus: [{entries}]}}"), device(gpu(0, product=product)))
    return None if name is None else (name.name.removeprefix("nvidia.com/"), name.rule)


CASES = {
    "no rules": ([], A100, ("gpu", "")),
    "a whole name": ([(A100, "a100")], A100, ("a100", "resources.gpus[0]")),
    "a part of the name is not the name": ([("A100", "a100")], A100, ("gpu", "")),
    "stars are any text": ([("*A100*80GB", "a100")], A100, ("a100", "resources.gpus[0]")),
    "case counts": ([("nvidia a100*", "a100")], A100, ("gpu", "")),
    "the first match wins": ([("*80GB", "big"), ("NVIDIA A100*", "a100")], A100, ("big", "resources.gpus[0]")),
    "a rule that does not match is passed over": (
        [("*T400", "display"), ("*A100*", "a100")],
        A100,
        ("a100", "resources.gpus[1]"),
    ),
    "the default comes last": ([("*A100*", "a100")], T400, ("gpu", "")),
    "a rule for all the rest": ([("*A100*", "a100"), ("*", "rest")], T400, ("rest", "resources.gpus[1]")),
    "a domain of its own": ([("*", "example.com/gpu")], T400, ("example.com/gpu", "resources.gpus[0]")),
    "unreadable without rules": ([], None, ("gpu", "")),
    "unreadable, and every rule says the default": (
        [("*A100*", "gpu"), ("*", "gpu")],
        None,
        ("gpu", "resources.gpus[1]"),
    ),
    "unreadable, and every rule and the default say the same": ([("*A100*", "gpu")], None, ("gpu", "")),
    "unreadable, and one rule is for all": ([("*", "rest")], None, ("rest", "resources.gpus[0]")),
    "unreadable, and one rule is for all, written otherwise": ([("**", "rest")], None, ("rest", "resources.gpus[0]")),
    "unreadable, and the name depends on it": ([("*A100*", "a100")], None, None),
    "unreadable, and only the rest has another name": ([("*A100*", "gpu"), ("*", "rest")], None, None),
}


@pytest.mark.parametrize(("rules", "product", "said"), CASES.values(), ids=CASES)
def test_the_first_rule_that_matches_gives_the_name_and_the_defaults_come_after(rules, product, said):
    assert named(rules, product) == said


RULES = st.lists(st.tuples(st.text("AB*", min_size=1, max_size=3), st.sampled_from(["gpu", "a", "b"])), max_size=4)


def without_covered(rules):
    """A file with a rule that is never reached is refused: leave such rules out."""
    kept = []
    for pattern, name in rules:
        if not any(parse_pattern(earlier).covers(parse_pattern(pattern)) for earlier, _ in kept):
            kept.append((pattern, name))
    return kept


def parse_pattern(text):
    return parse(f'resources: {{gpus: [{{pattern: "{text}", name: a}}]}}').resources.gpus[0].pattern


@given(rules=RULES, product=st.text("AB", max_size=4))
def test_a_gpu_whose_product_cannot_be_read_has_a_name_only_if_it_could_have_no_other(rules, product):
    rules = without_covered(rules)
    unread, read = named(rules, None), named(rules, product)
    assert read is not None, "a card never drops out because no pattern matches"
    if unread is not None:
        assert unread[0] == read[0]
