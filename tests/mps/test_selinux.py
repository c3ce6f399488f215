"""The SELinux context of a pipe directory, on nodes with SELinux and without."""

from __future__ import annotations

import pytest

from nvdp.errors import HostError
from nvdp.mps.selinux import CONTEXT, label


@pytest.fixture
def sys(directory):
    (directory / "sys" / "fs" / "selinux").mkdir(parents=True)
    (directory / "sys" / "fs" / "selinux" / "enforce").touch()
    return directory / "sys"


def have(context: bytes | None):
    def get(_path, _attribute: str) -> bytes:
        if context is None:
            raise OSError(61, "No data available")
        return context

    return get


def refuse(*_words) -> None:
    raise OSError(13, "Permission denied")


@pytest.mark.parametrize("context", [None, b"system_u:object_r:var_run_t:s0\0"])
def test_the_directory_gets_the_context_of_container_files(sys, directory, context):
    put = []
    label(directory, sys=sys, get=have(context), put=lambda *words: put.append(words))
    assert put == [(directory, "security.selinux", CONTEXT.encode() + b"\0")]


def test_what_has_the_context_already_is_not_touched(sys, directory):
    label(directory, sys=sys, get=have(CONTEXT.encode() + b"\0"), put=refuse)


def test_where_there_is_no_selinux_nothing_is_done(directory):
    label(directory, sys=directory, get=have(None), put=refuse)


def test_a_refusal_is_an_error_with_the_path_and_the_context(sys, directory):
    with pytest.raises(HostError) as raised:
        label(directory, sys=sys, get=have(None), put=refuse)
    assert str(raised.value).startswith(
        f"{directory}: cannot be given the SELinux context system_u:object_r:container_file_t:s0: Permission denied; "
    )
