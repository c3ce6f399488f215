"""The catalogue of XIDs: whole, and each of its classes where the documentation puts it."""

from __future__ import annotations

import pytest

from nvdp.planning.xids import (
    CATALOGUE,
    CATALOGUE_EDITION,
    CATALOGUE_ENTRIES,
    Advice,
    XidClass,
    classify_xid,
    describe_xid,
)


def numbers(xid_class: XidClass) -> set[int]:
    return {number for number, xid in CATALOGUE.items() if xid.advice.xid_class is xid_class}


def test_edition_610_is_whole() -> None:
    assert (CATALOGUE_EDITION, CATALOGUE_ENTRIES) == ("610", 172)
    assert list(CATALOGUE) == list(range(1, CATALOGUE_ENTRIES + 1))
    assert [xid.number for xid in CATALOGUE.values()] == list(CATALOGUE)


def test_every_entry_has_a_name_of_its_own_and_a_meaning_that_continues_a_sentence() -> None:
    assert len({xid.mnemonic for xid in CATALOGUE.values()}) == CATALOGUE_ENTRIES
    for xid in CATALOGUE.values():
        assert xid.mnemonic == xid.mnemonic.upper()
        assert xid.meaning
        assert not xid.meaning.endswith(".")


def test_what_restarting_the_application_cures_is_the_applications() -> None:
    engines = {*range(39, 42), 68, *range(70, 73), *range(75, 78), *range(82, 87), 88, 89, *range(96, 106)}
    engines |= {*range(126, 136), 139}
    assert numbers(XidClass.APPLICATION) == {8, 11, 13, 25, 31, 32, 45, 60, 69, 80, 94} | engines


def test_what_may_be_ignored_is_information() -> None:
    ignorable = {14, 37, 38, 43, 44, 63, 66, 67, 92, 93, 106, 107, 108, 121, 137, 141, 152, 153, 157, 160, 161}
    assert numbers(XidClass.NONE) == ignorable | {154, 162, 163, 164, 165}


def test_everything_else_needs_a_reset() -> None:
    rest = set(CATALOGUE) - numbers(XidClass.APPLICATION) - numbers(XidClass.NONE)
    assert numbers(XidClass.RESET) == rest
    assert {46, 48, 62, 64, 74, 79, 95, 109, 110, 119, 120, 140, 143, *range(144, 151), 155, 156, 158} < rest


def test_the_numbers_that_only_older_gpus_raise_are_for_the_vendor() -> None:
    older = {number for number, xid in CATALOGUE.items() if "older" in xid.meaning} | {91}
    assert len(older) == 61
    assert {CATALOGUE[number].advice for number in older} == {Advice.CONTACT_SUPPORT}


@pytest.mark.parametrize("number", [0, 173, 555, 2**64 - 1])
def test_an_unlisted_xid_needs_a_reset(number: int) -> None:
    assert classify_xid(number) is XidClass.RESET
    assert describe_xid(number) == f"XID {number}, not in the catalogue"


def test_an_xid_is_described_by_number_and_meaning() -> None:
    assert describe_xid(79) == "XID 79, fallen off the bus"


def test_every_advice_is_used_and_none_hides_another() -> None:
    assert {xid.advice for xid in CATALOGUE.values()} == set(Advice)
    assert len({advice.text for advice in Advice}) == len(Advice.__members__)
