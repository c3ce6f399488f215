"""As whom, and whom to trust: the service account and kubeconfig files, renewed while they are in use."""

from __future__ import annotations

import base64
import contextlib
import json
import resource
import shutil
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from nvdp.cluster.access import ServiceAccountAccess
from nvdp.cluster.api import Api
from nvdp.cluster.exec_plugin import run_plugin
from nvdp.cluster.reaching import build_access
from nvdp.errors import ClusterError, ClusterFault
from nvdp.model.cluster import build_node_path
from tests.cluster.server import TLS, TOKEN, USER, ApiServer
from tests.daemon.process import wait_until

NODE = build_node_path("gpu-a3")


def refuse(access, node=NODE) -> str:
    """The text of the refusal, which is one line and holds no token."""
    with pytest.raises(ClusterError) as caught:
        Api(access).read(node)
    text = str(caught.value)
    assert caught.value.fault is ClusterFault.UNREACHABLE
    assert "\n" not in text
    assert TOKEN not in text
    return text


def test_a_token_that_was_renewed_is_used_with_the_next_request(server: ApiServer, api, tmp_path: Path) -> None:
    api.read(NODE)
    server.tokens = {"another-token": USER}
    server.write_service_account(tmp_path / "account", token="another-token")
    api.read(NODE)
    assert [entry.code for entry in server.journal.of()] == [200, 200]


def test_a_token_that_is_renewed_too_late_is_denied_and_then_used(server: ApiServer, api, tmp_path: Path) -> None:
    server.tokens = {"another-token": USER}
    with pytest.raises(ClusterError, match="does not know our credentials") as caught:
        api.read(NODE)
    assert caught.value.fault is ClusterFault.DENIED
    assert TOKEN not in str(caught.value)
    server.write_service_account(tmp_path / "account", token="another-token")
    api.read(NODE)


def test_a_token_renewed_between_reading_and_asking_costs_no_failure(server: ApiServer, tmp_path: Path) -> None:
    """The file was read, then the kubelet renewed it, and only then the server looked."""

    class Late(ServiceAccountAccess):
        def find_way(self):
            way = super().find_way()
            if TOKEN in server.tokens:
                server.tokens = {"another-token": USER}
                server.write_service_account(tmp_path / "account", token="another-token")
            return way

    Api(Late(server.write_service_account(tmp_path / "account"), environ=server.environ)).read(NODE)
    assert [entry.code for entry in server.journal.of()] == [401, 200]


def test_outside_of_a_pod_it_says_what_to_give(tmp_path: Path) -> None:
    assert "--kubeconfig" in refuse(ServiceAccountAccess(tmp_path, environ={}))


def test_a_pod_without_its_service_account_says_so(server: ApiServer, tmp_path: Path) -> None:
    text = refuse(ServiceAccountAccess(tmp_path / "none", environ=server.environ))
    assert "automountServiceAccountToken" in text


@pytest.mark.parametrize("token", ["", " \n", "a\x00b", "a\nb"])
def test_a_token_that_is_none_is_not_sent(server: ApiServer, tmp_path: Path, token: str) -> None:
    directory = server.write_service_account(tmp_path / "account", token=token)
    assert "holds no token" in refuse(ServiceAccountAccess(directory, environ=server.environ))
    assert not server.journal.of()


def test_a_server_whose_certificate_another_ca_signed_is_not_trusted(server: ApiServer, tmp_path: Path) -> None:
    directory = server.write_service_account(tmp_path / "account")
    shutil.copy(TLS / "other-ca.crt", directory / "ca.crt")
    access = ServiceAccountAccess(directory, environ=server.environ)
    assert "certificate is not to be trusted" in refuse(access)
    shutil.copy(TLS / "ca.crt", directory / "ca.crt")
    Api(access).read(NODE)  # the new CA is used without a restart
    assert [entry.code for entry in server.journal.of()] == [200]


def test_a_server_of_another_name_is_not_trusted(server: ApiServer, tmp_path: Path) -> None:
    cluster = {"server": server.url.replace("127.0.0.1", "127.0.0.2"), "certificate-authority": str(TLS / "ca.crt")}
    path = server.write_kubeconfig(tmp_path / "config", cluster=cluster)
    assert "cannot be reached" in refuse(build_access(path))
    cluster = {"server": server.url, "certificate-authority": str(TLS / "ca.crt"), "tls-server-name": "elsewhere"}
    path = server.write_kubeconfig(tmp_path / "config", cluster=cluster)
    assert "certificate is not to be trusted" in refuse(build_access(path))


def test_a_ca_that_is_none_is_told(server: ApiServer, tmp_path: Path) -> None:
    directory = server.write_service_account(tmp_path / "account")
    (directory / "ca.crt").write_text("no certificate")
    assert "ca.crt" in refuse(ServiceAccountAccess(directory, environ=server.environ))


def test_a_server_is_reached_by_ipv6(tmp_path: Path) -> None:
    with ApiServer(host="::1") as server:
        server.store.put("nodes", {"metadata": {"name": "gpu-a3"}})
        directory = server.write_service_account(tmp_path / "account")
        Api(ServiceAccountAccess(directory, environ=server.environ)).read(NODE)


def test_a_kubeconfig_is_enough(server: ApiServer, tmp_path: Path) -> None:
    Api(build_access(server.write_kubeconfig(tmp_path / "config"))).read(NODE)


def test_a_token_file_of_a_kubeconfig_is_read_again(server: ApiServer, tmp_path: Path) -> None:
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    api = Api(build_access(server.write_kubeconfig(tmp_path / "config", tokenFile="token")))
    api.read(NODE)
    server.tokens = {"another-token": USER}
    (tmp_path / "token").write_text("another-token\n")
    api.read(NODE)
    assert [entry.code for entry in server.journal.of()] == [200, 200]


def test_a_ca_may_stand_in_the_kubeconfig_itself(server: ApiServer, tmp_path: Path) -> None:
    data = base64.b64encode((TLS / "ca.crt").read_bytes()).decode()
    path = server.write_kubeconfig(
        tmp_path / "config", cluster={"server": f"{server.url}/", "certificate-authority-data": data}
    )
    api = Api(build_access(path))
    api.read(NODE)
    assert api.read(NODE)["metadata"]["name"] == "gpu-a3"
    assert len({entry.connection for entry in server.journal.of()}) == 1


CERTIFY = """
import json, sys
crt, key = (open(name).read() for name in sys.argv[1:])
print(json.dumps({"status": {"clientCertificateData": crt, "clientKeyData": key}}))
"""


def encode(name: str) -> str:
    return base64.b64encode((TLS / name).read_bytes()).decode()


@pytest.mark.parametrize(
    "user",
    [
        {"client-certificate": str(TLS / "client.crt"), "client-key": str(TLS / "client.key")},
        {"client-certificate-data": encode("client.crt"), "client-key-data": encode("client.key")},
        {
            "exec": {
                "command": sys.executable,
                "args": [
                    "-c",
                    CERTIFY,
                    str(TLS / "client.crt"),
                    str(TLS / "client.key"),
                ],
            }
        },
    ],
    ids=["files", "inline", "plugin"],
)
def test_a_certificate_is_as_good_as_a_token(server: ApiServer, tmp_path: Path, user) -> None:
    server.tokens = {}
    server.certified = "system:node:gpu-a3"
    api = Api(build_access(server.write_kubeconfig(tmp_path / "config", **user)))
    api.read(NODE)
    api.read(NODE)
    entries = server.journal.of(code=200, user="system:node:gpu-a3")
    assert [entry.connection for entry in entries] == [1, 1]
    api.close()


def test_a_certificate_without_its_key_is_told(server: ApiServer, tmp_path: Path) -> None:
    user = {"client-certificate": str(TLS / "client.crt"), "client-key": str(TLS / "server.key")}
    assert "certificates to reach the API server" in refuse(
        build_access(server.write_kubeconfig(tmp_path / "c", **user))
    )


def test_a_plugin_is_run_once_and_again_when_its_token_is_not_known(server: ApiServer, tmp_path: Path) -> None:
    plugin = tmp_path / "plugin"
    plugin.write_text(
        f"#!{sys.executable}\n"
        "import json, os, pathlib, sys\n"
        "runs = pathlib.Path(__file__).with_name('runs')\n"
        "count = len(runs.read_text()) if runs.exists() else 0\n"
        "runs.write_text('x' * (count + 1))\n"
        "assert json.loads(os.environ['KUBERNETES_EXEC_INFO'])['kind'] == 'ExecCredential'\n"
        "print(json.dumps({'status': {'token': sys.argv[1] + os.environ['PART'] + str(count)}}))\n"
    )
    plugin.chmod(plugin.stat().st_mode | stat.S_IXUSR)
    server.tokens = {"ab0": USER}
    described = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": "./plugin",
        "args": ["a"],
        "env": [{"name": "PART", "value": "b"}],
    }
    api = Api(build_access(server.write_kubeconfig(tmp_path / "config", exec=described)))
    api.read(NODE)
    api.read(NODE)
    assert (tmp_path / "runs").read_text() == "x"
    server.tokens = {"ab1": USER}
    api.read(NODE)
    assert [entry.code for entry in server.journal.of()] == [200, 200, 401, 200]


@pytest.mark.parametrize(
    ("script", "told"),
    [
        ("exit 3", "failed with 3"),
        ("echo no JSON", "wrote no ExecCredential"),
        ("echo '{\"status\": 5}'", "wrote no ExecCredential"),
    ],
)
def test_a_plugin_that_fails_is_told_without_its_words(server: ApiServer, tmp_path: Path, script, told) -> None:
    described = {"command": "sh", "args": ["-c", script]}
    path = server.write_kubeconfig(tmp_path / "config", exec=described)
    assert told in refuse(build_access(path))


@pytest.mark.parametrize("last_words", ["cat /dev/zero", "sleep 60"])
def test_a_plugin_that_does_not_end_is_killed_with_all_that_it_started(tmp_path: Path, last_words: str) -> None:
    script = f"sleep 60 & echo $! > {tmp_path}/child; {last_words}"
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ClusterError, match=r"did not end within 0\.5 s, or wrote too much"):
        run_plugin({"command": "sh", "args": ["-c", script]}, directory=tmp_path, limit_s=0.5)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < before + 50_000, "KiB: what it writes is not kept"
    child = Path("/proc", (tmp_path / "child").read_text().strip(), "stat")
    wait_until(lambda: not child.exists() or child.read_text().split()[2] == "Z", what="the end of what it started")


def edit(path: Path, change) -> Path:
    document = json.loads(json.dumps(yaml.safe_load(path.read_text())))
    change(document)
    path.write_text(json.dumps(document))
    return path


MISTAKES = {
    "no-context": (lambda d: d.update({"current-context": "other"}), 'has no context of the name "other"'),
    "no-cluster": (lambda d: d.update(clusters=[]), 'has no cluster of the name "test"'),
    "no-user": (lambda d: d.update(users=None), 'has no user of the name "test"'),
    "insecure": (
        lambda d: d["clusters"][0]["cluster"].update({"insecure-skip-tls-verify": True}),
        "insecure-skip-tls-verify is not supported",
    ),
    "proxy": (lambda d: d["clusters"][0]["cluster"].update({"proxy-url": "http://x"}), "proxy-url is not supported"),
    "password": (lambda d: d["users"][0]["user"].update(password="x"), "password is not supported"),
    "no-server": (
        lambda d: d["clusters"][0]["cluster"].update(server="gopher://x"),
        "the API server's address is none",
    ),
    "bad-port": (
        lambda d: d["clusters"][0]["cluster"].update(server="https://x:y"),
        "the API server's address is none",
    ),
    "a-password-in-it": (
        lambda d: d["clusters"][0]["cluster"].update(server=f"https://x:{TOKEN}@x:y"),
        'the API server\'s address is none: "https://…@x:y"',
    ),
    "no-name": (
        lambda d: d["clusters"][0]["cluster"].update({"tls-server-name": "a\0b"}),
        "the API server's address, or tls-server-name, is none",
    ),
    "no-base64": (
        lambda d: d["clusters"][0]["cluster"].update({"certificate-authority-data": "%"}),
        "certificate-authority-data is not base64",
    ),
    "no-ca": (
        lambda d: d["clusters"][0]["cluster"].update({"certificate-authority": "/nowhere/ca"}),
        "No such file or directory",
    ),
    "two-lines": (lambda d: d["users"][0]["user"].update(token="a\nb"), "no text that can be sent"),
}


@pytest.mark.parametrize(("change", "told"), MISTAKES.values(), ids=MISTAKES)
def test_each_mistake_in_a_kubeconfig_is_told(server: ApiServer, tmp_path: Path, change, told: str) -> None:
    path = edit(server.write_kubeconfig(tmp_path / "config"), change)
    assert told in refuse(build_access(path))


PATHS = [
    ("clusters",),
    ("clusters", 0, "cluster", "server"),
    ("clusters", 0, "cluster", "certificate-authority"),
    ("clusters", 0, "cluster", "tls-server-name"),
    ("clusters", 0, "cluster", "certificate-authority-data"),
    ("contexts", 0),
    ("contexts", 0, "context"),
    ("contexts", 0, "context", "user"),
    ("users", 0, "user"),
    ("users", 0, "user", "token"),
    ("users", 0, "user", "tokenFile"),
    ("users", 0, "user", "client-certificate"),
    ("users", 0, "user", "client-key-data"),
    ("users", 0, "user", "exec"),
    ("users", 0, "user", "exec", "args"),
    ("users", 0, "user", "exec", "env"),
]
plain = st.none() | st.booleans() | st.integers() | st.text(max_size=5)
values = st.recursive(
    plain | st.sampled_from(["/", "a\x00b", "https://[", "é"]),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["name", "value", "x"]), inner, max_size=2)
    ),
    max_leaves=4,
)


@given(st.lists(st.tuples(st.sampled_from(PATHS), values), min_size=1, max_size=3), st.booleans())
def test_whatever_stands_in_a_kubeconfig_is_told_or_used(changes, has_plugin) -> None:
    user = {"exec": {"command": "true", "args": [], "env": []}} if has_plugin else {"token": "x"}
    document = {
        "current-context": "a",
        "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}],
        "clusters": [{"name": "a", "cluster": {"server": "https://x", "certificate-authority": str(TLS / "ca.crt")}}],
        "users": [{"name": "a", "user": user}],
    }
    for path, value in changes:
        block = document
        try:
            for part in path[:-1]:
                block = block[part]
            block[path[-1]] = value
        except (TypeError, KeyError, IndexError):
            continue  # another change took that away
    with tempfile.NamedTemporaryFile("w") as file:
        yaml.safe_dump(document, file)
        file.flush()
        with contextlib.suppress(ClusterError):
            assert build_access(Path(file.name)).find_way().host


@pytest.mark.parametrize("text", ["", "[", "- a", "a: &a [*a]", "5"])
def test_a_file_that_is_no_kubeconfig_is_told_and_followed(server: ApiServer, tmp_path: Path, text: str) -> None:
    path = tmp_path / "config"
    access = build_access(path)
    assert "No such file" in refuse(access)
    path.write_text(text)
    assert str(path) in refuse(access)
    server.write_kubeconfig(path)
    Api(access).read(NODE)


def test_nothing_of_this_is_loaded_by_the_daemon_itself() -> None:
    code = "import sys, nvdp.app.daemon; print([name for name in sys.modules if name in ('ssl', 'nvdp.cluster.api')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
