"""Every way in which a configuration changes under a process that follows it."""

from __future__ import annotations

import itertools
import shutil

_versions = itertools.count(1)


def configmap(directory, text="first"):
    """A ConfigMap volume as the kubelet makes it, or its next version by the kubelet's swap; the path of its file."""
    directory.mkdir(exist_ok=True)
    version = directory / f"..2026_{next(_versions)}"
    version.mkdir()
    (version / "mixed").write_text(text)
    data, temporary, path = directory / "..data", directory / "..data_tmp", directory / "mixed"
    before = data.resolve() if data.is_symlink() else None
    temporary.symlink_to(version.name)
    temporary.rename(data)
    if not path.is_symlink():
        path.symlink_to("..data/mixed")
    if before is not None:
        shutil.rmtree(before)
    return path


def _write_new(path, text="changed"):
    path.with_name("new").write_text(text)
    path.with_name("new").rename(path)


def swap(path):
    configmap(path.parent, "changed")


def rename_over(path):
    _write_new(path)


def write_in_place(path):
    path.write_text("changed")


def delete(path):
    path.unlink()


def delete_and_create(path):
    path.unlink()
    path.write_text("changed")


def recreate_directory(path):
    shutil.rmtree(path.parent)
    path.parent.mkdir()
    path.write_text("changed")


def exchange_directory(path):
    new = path.parent.with_name(f"{path.parent.name}-new")
    new.mkdir()
    (new / path.name).write_text("changed")
    path.parent.rename(path.parent.with_name(f"{path.parent.name}-old"))
    new.rename(path.parent)


def remove_directory(path):
    shutil.rmtree(path.parent)


def replace_link_target(path):
    target = path.parent / "elsewhere"
    target.write_text("changed")
    temporary = path.parent / "link"
    temporary.symlink_to(target)
    temporary.replace(path)


CHANGES = [
    swap,
    rename_over,
    write_in_place,
    delete,
    delete_and_create,
    recreate_directory,
    exchange_directory,
    remove_directory,
    replace_link_target,
]
