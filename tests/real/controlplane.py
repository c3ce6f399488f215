"""A real etcd and kube-apiserver, with what an administrator does to them."""

from __future__ import annotations

import json
import os
import shutil
import signal
import ssl
import subprocess
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import yaml

from tests.cluster.server import TLS
from tests.daemon.process import find_free_port, wait_until

START_S = 90.0
_STOP_S = 20.0
_ADMIN = "the-admin-of-a-test"
_USERS = f'{_ADMIN},admin,admin,"system:masters"\n'


class Program:
    """A process, its output in a file of its own; whoever started it ends it."""

    def __init__(self, command: list[str | Path], log: Path, *, environment: Mapping[str, str] | None = None) -> None:
        self.log = log
        self._out: IO[bytes] = log.open("ab")
        self._process = subprocess.Popen(
            [str(word) for word in command], stdout=self._out, stderr=subprocess.STDOUT, env=environment
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def check(self) -> None:
        """AssertionError with the end of its output if it has ended."""
        code = self._process.poll()
        tail = self.log.read_text(errors="replace")[-2000:] if code is not None else ""
        assert code is None, f"{self.log.stem} ended with {code}: {tail}"

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        self._process.send_signal(number)
        try:
            self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._out.close()


class ControlPlane:
    """``start`` it; ``stop_server`` and ``start_server`` are an outage of the API server. There are no controllers and
    no scheduler: what is created stays as it is.

    ``programs`` is where etcd and kube-apiserver lie, ``root`` an empty directory.
    """

    def __init__(self, programs: Path, root: Path) -> None:
        self.programs = programs
        self._root = root
        self._port = find_free_port()
        self._etcd_port = find_free_port()
        self._etcd: Program | None = None
        self._server: Program | None = None
        self._context = ssl.create_default_context(cafile=str(TLS / "ca.crt"))
        self.url = f"https://127.0.0.1:{self._port}"
        self.admin = root / "admin.kubeconfig"

    def start(self, *flags: str) -> None:
        """Blocks until it answers."""
        peer = f"http://127.0.0.1:{find_free_port()}"
        client = f"http://127.0.0.1:{self._etcd_port}"
        self._etcd = Program(
            [
                *(self.programs / "etcd", "--data-dir", self._root / "etcd", "--name", "test"),
                *("--listen-client-urls", client, "--advertise-client-urls", client),
                *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer),
                *("--initial-cluster", f"test={peer}", "--unsafe-no-fsync"),
            ],
            self._root / "etcd.log",
        )
        users = self._root / "users.csv"
        users.write_text(_USERS)
        write_kubeconfig(self.admin, self.url, {"token": _ADMIN})
        self.start_server(*flags)

    def start_server(self, *flags: str) -> None:
        """Blocks until the API server answers."""
        self._server = Program(
            [
                *(self.programs / "kube-apiserver", f"--etcd-servers=http://127.0.0.1:{self._etcd_port}"),
                *("--bind-address=127.0.0.1", f"--secure-port={self._port}", f"--cert-dir={self._root}"),
                *(f"--tls-cert-file={TLS / 'server.crt'}", f"--tls-private-key-file={TLS / 'server.key'}"),
                *(f"--token-auth-file={self._root / 'users.csv'}", "--authorization-mode=Node,RBAC"),
                *("--service-account-issuer=https://kubernetes.default.svc", "--api-audiences=test"),
                f"--service-account-key-file={TLS / 'server.crt'}",
                f"--service-account-signing-key-file={TLS / 'server.key'}",
                *("--service-cluster-ip-range=10.96.0.0/24", "--allow-privileged=true"),
                *(flags or ("--disable-admission-plugins=ServiceAccount",)),
            ],
            self._root / "kube-apiserver.log",
        )
        wait_until(self._is_ready, START_S, what="that the API server answers")

    def stop_server(self, number: signal.Signals = signal.SIGTERM) -> None:
        """The outage begins: nothing listens any more."""
        server, self._server = self._server, None
        assert server is not None
        server.stop(number)

    def compact(self) -> None:
        """Forget all versions but the present ones: who goes on from an old one hears 410 Gone."""
        header = self._ask_etcd("maintenance/status", {})["header"]
        self._ask_etcd("kv/compaction", {"revision": header["revision"], "physical": True})

    def _ask_etcd(self, path: str, question: dict[str, Any]) -> dict[str, Any]:
        request = urllib.request.Request(f"http://127.0.0.1:{self._etcd_port}/v3/{path}", json.dumps(question).encode())
        with urllib.request.urlopen(request, timeout=10) as answer:
            found: dict[str, Any] = json.loads(answer.read())
            return found

    def stop(self) -> None:
        """End all of it."""
        for program in (self._server, self._etcd):
            if program is not None:
                program.stop()

    def _is_ready(self) -> bool:
        for program in (self._etcd, self._server):
            assert program is not None
            program.check()
        try:
            with urllib.request.urlopen(self._build_request("/readyz"), timeout=5, context=self._context) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    def _build_request(self, path: str) -> urllib.request.Request:
        return urllib.request.Request(f"{self.url}{path}", headers={"Authorization": f"Bearer {_ADMIN}"})

    def kubectl(self, *words: str | Path, given: Any = None, editor: str = "false") -> str:
        """What an administrator's kubectl prints; ``given`` is an object, or several, on its standard input.

        ``editor`` is the command line that ``kubectl edit`` calls with a file.
        """
        if isinstance(given, list):
            given = {"apiVersion": "v1", "kind": "List", "items": given}
        text = json.dumps(given) if given is not None else None
        command = [find_kubectl(self.programs), "--kubeconfig", str(self.admin), *map(str, words)]
        environment = {**os.environ, "KUBE_EDITOR": editor}
        done = subprocess.run(
            command, input=text, env=environment, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, f"kubectl {' '.join(map(str, words))}: {done.stderr}"
        return done.stdout

    def create(self, *objects: dict[str, Any]) -> None:
        """What the server does not know of them is left out."""
        self.kubectl("create", "--validate=false", "-f", "-", given=list(objects))

    def patch(self, path: str, change: list[dict[str, Any]]) -> None:
        """A JSON patch of what is at this path, which may be a subresource: kubectl of old knows none."""
        request = self._build_request(path)
        request.method, request.data = "PATCH", json.dumps(change).encode()
        request.add_header("Content-Type", "application/json-patch+json")
        with urllib.request.urlopen(request, timeout=10, context=self._context):
            pass

    def get(self, *words: str) -> dict[str, Any]:
        """An object, or a list of them, by the words of ``kubectl get``."""
        found: dict[str, Any] = json.loads(self.kubectl("get", *words, "-o", "json"))
        return found

    def write_service_account(self, path: Path, *, namespace: str, name: str) -> Path:
        """A kubeconfig with a token of this service account, in a file beside it, as its pod would have it."""
        asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 7200}}
        account = f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token"
        granted = json.loads(self.kubectl("create", "--raw", account, "-f", "-", given=asked))
        token = path.with_suffix(".token")
        token.write_text(granted["status"]["token"])
        return write_kubeconfig(path, self.url, {"tokenFile": str(token)})


def write_kubeconfig(path: Path, url: str, user: Mapping[str, str]) -> Path:
    """A kubeconfig of this server, for this user."""
    named = "test"
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": named,
        "contexts": [{"name": named, "context": {"cluster": named, "user": named}}],
        "clusters": [{"name": named, "cluster": {"server": url, "certificate-authority": str(TLS / "ca.crt")}}],
        "users": [{"name": named, "user": dict(user)}],
    }
    path.write_text(yaml.safe_dump(document))
    return path


def find_kubectl(programs: Path) -> str:
    """The one beside the programs, or this machine's."""
    own = programs / "kubectl"
    found = str(own) if own.exists() else shutil.which("kubectl")
    assert found, f"there is no kubectl, neither in {programs} nor in PATH"
    return found
