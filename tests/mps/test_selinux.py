"""The SELinux context of a pipe directory, on nodes with SELinux and without."""

from __future__ import annotations

import pytest

from nvdp.errors import HostError
from nvdp.mps.selinux import CONTEXT, label


@pytest.fixture
def proc(directory):
    """As the kernel of a node with SELinux tells it in every container."""
    (directory / "filesystems").write_text("nodev\tsysfs\nnodev\ttmpfs\nnodev\tselinuxfs\n\text4\n")
    return directory


def have(context: bytes | None):
    def get(_path, _attribute: str) -> bytes:
        if context is None:
            raise OSError(61, "No data available")
        return context

    return get


def refuse(*_words) -> None:
    raise OSError(13, "Permission denied")


@pytest.mark.parametrize("context", [None, b"system_u:object_r:var_run_t:s0\0"])
def test_the_directory_gets_the_context_of_container_files(proc, directory, context):
    put = []
    label(directory, proc=proc, get=have(context), put=lambda *words: put.append(words))
    assert put == [(directory, "security.selinux", CONTEXT.encode() + b"\0")]


def test_what_has_the_context_already_is_not_touched(proc, directory):
    label(directory, proc=proc, get=have(CONTEXT.encode() + b"\0"), put=refuse)


@pytest.mark.parametrize("filesystems", ["nodev\tsysfs\n\text4\n", "", None])
def test_where_there_is_no_selinux_nothing_is_done(directory, filesystems):
    if filesystems is not None:
        (directory / "filesystems").write_text(filesystems)
    label(directory, proc=directory, get=have(None), put=refuse)


def test_a_refusal_is_an_error_with_the_path_and_the_context(proc, directory):
    with pytest.raises(HostError) as raised:
        label(directory, proc=proc, get=have(None), put=refuse)
    assert str(raised.value).startswith(
        f"{directory}: cannot be given the SELinux context system_u:object_r:container_file_t:s0: Permission denied; "
    )
