"""Access by a kubeconfig file, read by the client library of Kubernetes, with what that allows: inline data, token
files, exec plugins.

The library is large and is loaded here only. It reads a file once; so the file is read again when it changed, when the
server does not know the credentials, and every ten minutes because of the files that it names.
"""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any, Final

from kubernetes.client.configuration import Configuration
from kubernetes.config.kube_config import load_kube_config

from nvdp.cluster.access import Source, Trust, Way, build_way
from nvdp.errors import ClusterError, ClusterFault

_READ_AGAIN_S: Final = 600.0


class KubeconfigAccess:
    """An Access. Its first call blocks while the file is read, and as long as an exec plugin takes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._trust = Trust()
        self._loaded: Any = None
        self._loaded_of: tuple[int, ...] = ()
        self._loaded_at = 0.0

    def find_way(self) -> Way:
        with self._lock:
            source = self._find_source()
            return build_way(source, self._find_authorization(), trust=self._trust)

    def renew(self) -> bool:
        with self._lock:
            last = self._find_authorization() if self._loaded is not None else ""
            self._loaded = None
            self._find_source()
            return self._find_authorization() != last

    def _find_source(self) -> Source:
        try:
            found = self._path.stat()
        except OSError as error:
            raise self._refuse(error.strerror or "cannot be read") from error
        identity = (found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size)
        now = time.monotonic()
        if self._loaded is None or identity != self._loaded_of or now - self._loaded_at > _READ_AGAIN_S:
            self._loaded = self._load()
            self._loaded_of, self._loaded_at = identity, now
        loaded = self._loaded
        return Source(
            server=str(loaded.host),
            ca_file=loaded.ssl_ca_cert or "",
            certificate_file=loaded.cert_file or "",
            key_file=loaded.key_file or "",
            server_name=loaded.tls_server_name or "",
        )

    def _load(self) -> Any:
        loaded = Configuration()
        try:
            load_kube_config(os.fspath(self._path), client_configuration=loaded, persist_config=False)
        except Exception as error:
            raise self._refuse(f"not usable ({type(error).__name__})") from error
        if not loaded.verify_ssl:
            raise self._refuse("insecure-skip-tls-verify is not supported; name the certificate-authority")
        return loaded

    def _find_authorization(self) -> str:
        try:
            return str(self._loaded.get_api_key_with_prefix("authorization") or "")
        except Exception as error:
            raise self._refuse(f"no credentials ({type(error).__name__})") from error

    def _refuse(self, text: str) -> ClusterError:
        return ClusterError(f"kubeconfig {self._path}: {text}", fault=ClusterFault.UNREACHABLE)
