"""Access by a kubeconfig file: certificates and tokens in it or in files that it names, and exec plugins.

The client library of Kubernetes reads such files, too. It is not used: for this alone it brings 13 packages and takes
46 MiB, reads a token file once in its life, and writes keys that stand in the file to temporary ones.

An error names the key that is wrong and never what stands there, which may be a secret in the wrong place. It repeats
names of contexts, clusters and users, the server without a password, and the program of a plugin.
"""

from __future__ import annotations

import base64
import os
import threading
import time
from pathlib import Path
from typing import Any, Final

import msgspec
import yaml

from nvdp.cluster.access import NamedFile, Source, Trust, Way, build_way, load_token
from nvdp.cluster.exec_plugin import Credential, run_plugin
from nvdp.errors import ClusterError, ClusterFault, quote

_FILE_LIMIT: Final = 2**20
_REMEDY: Final = "name a file that holds a token, or write a token itself under the key token"
_UNSUPPORTED: Final = ("auth-provider", "username", "password", "as", "as-groups")


class _Block(msgspec.Struct, frozen=True):
    """A cluster or a user. ``told`` is whose it is, for people."""

    values: dict[str, Any]
    told: str = ""


class KubeconfigAccess:
    """An Access, of the file's current context. The file is read for each request; an exec plugin is run again when
    what it gave has expired, or is not known to the server, and blocks for 8 s at most.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._trust = Trust()
        self._credential: Credential | None = None
        self._credential_of: object = None
        self._inline = _InlineFiles()
        self._last = ""

    def find_way(self) -> Way:
        with self._lock:
            cluster, user = self._load()
            self._last, credential = self._find_credentials(user)
            source = Source(
                server=_text(cluster.values, "server"),
                ca=self._find_file(cluster, "certificate-authority"),
                certificate=self._find_file(credential or user, "client-certificate"),
                key=self._find_file(credential or user, "client-key"),
                server_name=_text(cluster.values, "tls-server-name"),
            )
            return build_way(source, self._last, trust=self._trust)

    def renew(self) -> bool:
        with self._lock:
            last, self._credential = self._last, None
            _, user = self._load()
            return self._find_credentials(user)[0] != last

    def _load(self) -> tuple[_Block, _Block]:
        """Cluster and user of the current context."""
        try:
            with self._path.open("rb") as file:
                document = yaml.safe_load(file.read(_FILE_LIMIT))
        except OSError as error:
            raise self._refuse(error.strerror or "cannot be read") from error
        except (yaml.YAMLError, RecursionError, ValueError):
            raise self._refuse("is no YAML") from None  # what it comes from repeats a line of the file
        if not isinstance(document, dict):
            raise self._refuse("is no kubeconfig")
        context = self._find(document, "context", _text(document, "current-context")).values
        cluster = self._find(document, "cluster", _text(context, "cluster"))
        user = self._find(document, "user", _text(context, "user")) if context.get("user") else _Block({})
        if cluster.values.get("insecure-skip-tls-verify"):
            raise self._refuse("insecure-skip-tls-verify is not supported; name the certificate-authority")
        if cluster.values.get("proxy-url"):
            raise self._refuse("proxy-url is not supported")
        if found := [key for key in _UNSUPPORTED if user.values.get(key)]:
            raise self._refuse(f"{found[0]} is not supported; use a token, a certificate or exec")
        return cluster, user

    def _find(self, document: dict[str, Any], kind: str, name: str) -> _Block:
        entries = document.get(f"{kind}s")
        for entry in entries if isinstance(entries, list) else []:
            if isinstance(entry, dict) and entry.get("name") == name and isinstance(entry.get(kind), dict):
                return _Block(entry[kind], f"of the {kind} {quote(name)}")
        raise self._refuse(f"has no {kind} of the name {quote(name)}")

    def _find_credentials(self, user: _Block) -> tuple[str, _Block | None]:
        """The ``Authorization``, and the certificate that an exec plugin gave in the file's own form."""
        if name := _text(user.values, "tokenFile"):
            file = self._name_file(name, "tokenFile", user)
            return f"Bearer {load_token(file, remedy=_REMEDY)}", None
        if token := _text(user.values, "token"):
            return f"Bearer {token}", None
        plugin = user.values.get("exec")
        if not isinstance(plugin, dict):
            return "", None
        is_fresh = self._credential is not None and self._credential.expires_at > time.time()
        if not is_fresh or self._credential_of != plugin:
            try:
                self._credential, self._credential_of = run_plugin(plugin, directory=self._path.parent), plugin
            except ClusterError as error:
                raise self._refuse(str(error)) from error
        assert self._credential is not None
        certificate = self._credential.certificate
        block = _Block(certificate, f"by exec {user.told}") if certificate is not None else None
        return (f"Bearer {self._credential.token}" if self._credential.token else ""), block

    def _find_file(self, block: _Block, key: str) -> NamedFile | None:
        """The file of a certificate or key; what stands in the kubeconfig gets one in memory: TLS wants files."""
        if data := _text(block.values, f"{key}-data"):
            try:
                content = base64.b64decode(data, validate=True)
            except ValueError as error:
                raise self._refuse(f"{key}-data is not base64") from error
            return self._name_file(self._inline.find_name(key, content), f"{key}-data", block)
        name = _text(block.values, key)
        return self._name_file(name, key, block) if name else None

    def _name_file(self, name: str, key: str, block: _Block) -> NamedFile:
        return NamedFile(str(self._path.parent / name), f"kubeconfig {self._path}: {key} {block.told}")

    def _refuse(self, text: str) -> ClusterError:
        return ClusterError(f"kubeconfig {self._path}: {text}", fault=ClusterFault.UNREACHABLE)


class _InlineFiles:
    """Files in memory, of this process alone, one for each key. They are closed with it."""

    def __init__(self) -> None:
        self._files: dict[str, tuple[int, bytes]] = {}

    def find_name(self, key: str, content: bytes) -> str:
        """The name of the file with this content; the same name, and the same file, while that stays."""
        found = self._files.get(key)
        if found is None or found[1] != content:
            if found is not None:
                os.close(found[0])
            descriptor = os.memfd_create(key)
            os.write(descriptor, content)
            self._files[key] = descriptor, content
        return f"/proc/self/fd/{self._files[key][0]}"

    def __del__(self) -> None:
        for descriptor, _ in self._files.values():
            os.close(descriptor)


def _text(block: dict[str, Any], key: str) -> str:
    value = block.get(key)
    return value.strip() if isinstance(value, str) else ""
