"""An image with nothing but busybox in it, as the archive of an OCI layout that containerd imports."""

from __future__ import annotations

import hashlib
import io
import json
import platform
import tarfile
from pathlib import Path
from typing import Any

IMAGE = "localhost/busybox:test"
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_COMMANDS = ("sh", "sleep", "cat", "ls", "env", "stat", "readlink")


def build_image(busybox: Path, archive: Path) -> None:
    """Write the archive. A container without a command of its own sleeps, which makes this a pause image as well."""
    layer = _build_layer(busybox.read_bytes())
    config = _encode(
        {
            "architecture": _ARCHITECTURES[platform.machine()],
            "os": "linux",
            "config": {"Entrypoint": ["/bin/sleep", "100000"], "Env": ["PATH=/bin"]},
            "rootfs": {"type": "layers", "diff_ids": [_digest(layer)]},
        }
    )
    manifest = _encode(
        {
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": _describe(config, "application/vnd.oci.image.config.v1+json"),
            "layers": [_describe(layer, "application/vnd.oci.image.layer.v1.tar")],
        }
    )
    named = {
        **_describe(manifest, "application/vnd.oci.image.manifest.v1+json"),
        "annotations": {"io.containerd.image.name": IMAGE, "org.opencontainers.image.ref.name": "test"},
    }
    with tarfile.open(archive, "w") as file:
        _add(file, "oci-layout", _encode({"imageLayoutVersion": "1.0.0"}))
        _add(file, "index.json", _encode({"schemaVersion": 2, "manifests": [named]}))
        for blob in (layer, config, manifest):
            _add(file, "blobs/sha256/" + _digest(blob).removeprefix("sha256:"), blob)


def _build_layer(busybox: bytes) -> bytes:
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w") as layer:
        for name in ("bin", "dev", "etc", "proc", "run", "sys", "tmp", "usr", "var"):
            directory = tarfile.TarInfo(name)
            directory.type, directory.mode = tarfile.DIRTYPE, 0o755
            layer.addfile(directory)
        _add(layer, "bin/busybox", busybox, mode=0o755)
        for name in _COMMANDS:
            link = tarfile.TarInfo(f"bin/{name}")
            link.type, link.linkname = tarfile.SYMTYPE, "busybox"
            layer.addfile(link)
    return written.getvalue()


def _add(file: tarfile.TarFile, name: str, content: bytes, *, mode: int = 0o644) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mode = len(content), mode
    file.addfile(member, io.BytesIO(content))


def _encode(value: Any) -> bytes:
    return json.dumps(value).encode()


def _digest(blob: bytes) -> str:
    return "sha256:" + hashlib.sha256(blob).hexdigest()


def _describe(blob: bytes, media_type: str) -> dict[str, Any]:
    return {"mediaType": media_type, "digest": _digest(blob), "size": len(blob)}
