"""How the API server is reached, and as whom: by the pod's service account, or by a kubeconfig file.

Credentials are read again when they change: projected tokens live for an hour, certificates are renewed. The server's
certificate is verified always. Proxies are not used: the API server is asked directly, whatever the environment says.
Nobody is asked for a password.
"""

from __future__ import annotations

import contextlib
import os
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final, NoReturn, Protocol
from urllib.parse import urlsplit

import msgspec

from nvdp.cluster.sockets import TimedTlsSocket
from nvdp.errors import ClusterError, ClusterFault, quote

SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_SECRET_LIMIT: Final = 65536  # bytes of a token
_PORTS: Final = {"http": 80, "https": 443}


class Way(msgspec.Struct, frozen=True):
    """A way to the server: where, with which trust, and under which ``Authorization``. ``context`` None: without TLS.

    Connections may be kept as long as ``host`` to ``server_name`` and ``context`` are the same ones.
    """

    host: str
    port: int
    prefix: str
    server_name: str
    context: ssl.SSLContext | None
    authorization: str

    def hide_secret(self, text: str) -> str:
        """``text`` of a server without the token, if it repeats that: it is for people and logs."""
        _, _, token = self.authorization.partition(" ")
        return text.replace(token, "…") if token else text


class Access(Protocol):
    """Any thread. Both raise ClusterError (UNREACHABLE) if what is needed is not there or cannot be read."""

    def find_way(self) -> Way:
        """The way as it is now."""
        ...

    def renew(self) -> bool:
        """The server does not know the credentials: read them again. Whether they are others now."""
        ...


class NamedFile(msgspec.Struct, frozen=True):
    """A file by its ``name``, and as people are ``told`` of it: a name that somebody wrote may be a secret instead."""

    name: str
    told: str


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """What a kind of access has read: the server, and files of certificates, None where there are none."""

    server: str
    ca: NamedFile | None = None
    certificate: NamedFile | None = None
    key: NamedFile | None = None
    server_name: str = ""


class Trust:
    """The TLS context of a source, made anew when one of its files is another one. Used under its owner's lock."""

    def __init__(self) -> None:
        self._made_of: tuple[object, ...] = ()
        self._context: ssl.SSLContext | None = None

    def find_context(self, source: Source) -> ssl.SSLContext:
        """Raises ClusterError for files that cannot be read, are no certificates, or are encrypted."""
        files = (source.ca, source.certificate, source.key)
        made_of = (source, *(_identify(file) for file in files if file is not None))
        if self._context is None or made_of != self._made_of:
            self._context, self._made_of = _build_context(source), made_of
        return self._context


class ServiceAccountAccess:
    """The pod's own account, of ``directory`` and of the environment's ``KUBERNETES_SERVICE_HOST`` and ``_PORT``.

    The token is read for each request, as it costs nothing beside one.
    """

    def __init__(self, directory: Path = SERVICE_ACCOUNT, *, environ: Mapping[str, str] = os.environ) -> None:
        self._directory = directory
        self._environ = environ
        self._lock = threading.Lock()
        self._trust = Trust()
        self._last = ""

    def find_way(self) -> Way:
        host, port = (self._environ.get(f"KUBERNETES_SERVICE_{name}", "") for name in ("HOST", "PORT"))
        if not host or not port:
            raise _refuse(
                "no API server: KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set; outside of a pod give"
                " --kubeconfig"
            )
        token = self._load_token()
        name = str(self._directory / "ca.crt")
        source = Source(server=build_server(host, port), ca=NamedFile(name, quote(name)))
        with self._lock:
            self._last = token
            return build_way(source, f"Bearer {token}", trust=self._trust)

    def renew(self) -> bool:
        with self._lock:
            last = self._last
        return self._load_token() != last

    def _load_token(self) -> str:
        name = str(self._directory / "token")
        remedy = "does the pod mount its service account (automountServiceAccountToken)?"
        return load_token(NamedFile(name, quote(name)), remedy=remedy)


def load_token(file: NamedFile, *, remedy: str) -> str:
    """Raises ClusterError (UNREACHABLE), which ends with ``remedy`` if there is no such file."""
    try:
        with Path(file.name).open(encoding="ascii") as opened:
            token = opened.read(_SECRET_LIMIT).strip()
    except (OSError, ValueError) as error:  # no text, or no name of a file
        told = getattr(error, "strerror", None) or "no token"
        raise _refuse(f"{file.told}: {told}; {remedy}") from None  # what it comes from has the name
    if not token or not token.isprintable():
        raise _refuse(f"{file.told}: holds no token")
    return token


def build_server(host: str, port: str) -> str:
    return f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"


def build_way(source: Source, authorization: str, *, trust: Trust) -> Way:
    """Raises ClusterError for an address that is none."""
    try:
        parts = urlsplit(source.server)
        host, port = parts.hostname or "", parts.port or _PORTS[parts.scheme]
    except (ValueError, KeyError) as error:
        raise _refuse(f"the API server's address is none: {_show_address(source.server)}") from error
    server_name = source.server_name or host
    if not host or not (host + server_name).isprintable():
        raise _refuse(f"the API server's address, or tls-server-name, is none: {_show_address(source.server)}")
    if not authorization.isascii() or not authorization.isprintable():
        raise _refuse("the credentials for the API server are no text that can be sent")
    return Way(
        host=host,
        port=port,
        prefix=parts.path.rstrip("/"),
        server_name=server_name,
        context=trust.find_context(source) if parts.scheme == "https" else None,
        authorization=authorization,
    )


def _show_address(server: str) -> str:
    """Without a password that stands in it."""
    before, at, rest = server.rpartition("@")
    return quote(f"{before.partition('//')[0]}//…@{rest}" if at else server)


def _build_context(source: Source) -> ssl.SSLContext:
    with _translate(source.ca):
        context = ssl.create_default_context(cafile=source.ca.name if source.ca is not None else None)
    context.sslsocket_class = TimedTlsSocket
    if source.certificate is not None:
        pair = source.certificate, source.key
        with _translate(*pair):
            certificate, key = (file.name if file is not None else None for file in pair)
            assert certificate is not None
            context.load_cert_chain(certificate, key, password=_build_password(source.key or source.certificate))
    return context


def _build_password(file: NamedFile) -> Callable[[], NoReturn]:
    """What the library calls for a key that is encrypted. Without it somebody at the terminal would be asked."""

    def ask() -> NoReturn:
        raise _refuse_files(
            file.told,
            "the private key is encrypted, and nvdp asks nobody for its password; give it without one, as openssl pkey"
            " -in FILE writes it",
        )

    return ask


def _identify(file: NamedFile) -> tuple[int, ...]:
    with _translate(file):
        found = Path(file.name).stat()
        return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size


@contextlib.contextmanager
def _translate(*files: NamedFile | None) -> Iterator[None]:
    """What goes wrong with these files, without its cause: that has their names."""
    try:
        yield
    except (OSError, ValueError) as error:  # that ssl.SSLError is one, too
        told = getattr(error, "strerror", None) or type(error).__name__
        raise _refuse_files(" and ".join(file.told for file in files if file is not None), told) from None


def _refuse_files(files: str, text: str) -> ClusterError:
    return _refuse(f"certificates to reach the API server: {files or 'those of the system'}: {text}")


def _refuse(text: str) -> ClusterError:
    return ClusterError(text, fault=ClusterFault.UNREACHABLE)
