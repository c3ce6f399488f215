"""What stands in a kubeconfig, and in files that it names, is never told: in the wrong place it may be a secret."""

from __future__ import annotations

import base64
import subprocess
import sys
import traceback
from pathlib import Path

import pytest

from nvdp.cluster.api import Api
from nvdp.cluster.reaching import build_access
from nvdp.errors import ClusterError
from nvdp.model.cluster import build_node_path
from tests.cluster.server import TLS, ApiServer

KEY = (TLS / "client.key").read_text()
SECRETS = {
    "a JWT": ".".join(["eyJhbGciOiJSUzI1NiJ9", "eyJpc3MiOiJrdWJlcm5ldGVzIn0" * 20, "c2lnbmF0dXJl"]),
    "short": "s3cr3t",
    "with slashes": "x9/Qk+3z",
    "like a path": "/s3cr3t",
    "a key": KEY,
    "a key on one line": KEY.replace("\n", " "),
    "with a NUL": "s3cr3t\0",
}
PIECE = 6  # characters of a secret that are none to tell


@pytest.mark.parametrize("secret", SECRETS.values(), ids=SECRETS)
@pytest.mark.parametrize("key", ["tokenFile", "client-certificate", "client-key"])
def test_a_secret_in_the_place_of_a_files_name_is_not_told(server: ApiServer, tmp_path: Path, key: str, secret) -> None:
    user = {"client-certificate": str(TLS / "client.crt"), key: secret}
    path = server.write_kubeconfig(tmp_path / "config", **user)
    with pytest.raises(ClusterError) as caught:
        Api(build_access(path)).read(build_node_path("gpu-a3"))
    told = "".join(traceback.format_exception(caught.value))  # with what it comes from
    body = secret.replace("PRIVATE KEY", "")
    assert not [start for start in range(len(body) - PIECE + 1) if body[start : start + PIECE] in told]
    assert f'kubeconfig {path}: {key} of the user "test": ' in str(caught.value)


def test_a_secret_in_a_line_that_is_no_yaml_is_not_told(tmp_path: Path) -> None:
    (tmp_path / "config").write_text("users: [{name: test, user: {token: s3cr3t: s3cr3t}}]\n")
    with pytest.raises(ClusterError, match="is no YAML") as caught:
        build_access(tmp_path / "config").find_way()
    assert "s3cr3t" not in "".join(traceback.format_exception(caught.value))


ASK = """
import sys
from pathlib import Path
from nvdp.cluster.reaching import build_access
from nvdp.errors import ClusterError
try:
    build_access(Path(sys.argv[1])).find_way()
except ClusterError as error:
    print(error)
"""


@pytest.mark.parametrize("is_inline", [False, True], ids=["named", "inline"])
@pytest.mark.parametrize("is_apart", [True, False], ids=["a key's own file", "with the certificate"])
def test_an_encrypted_key_is_refused_and_nobody_is_asked(
    server: ApiServer, tmp_path: Path, *, is_inline: bool, is_apart: bool
) -> None:
    certificate, encrypted = ((TLS / name).read_text() for name in ("client.crt", "client-encrypted.key"))
    texts = {"client-certificate": certificate + ("" if is_apart else encrypted)}
    if is_apart:
        texts["client-key"] = encrypted
    user = {}
    for key, text in texts.items():
        (tmp_path / key).write_text(text)
        user |= {f"{key}-data": base64.b64encode(text.encode()).decode()} if is_inline else {key: key}
    path = server.write_kubeconfig(tmp_path / "config", **user)
    # Without a terminal somebody would be asked on its standard error.
    asked = subprocess.run(
        (sys.executable, "-c", ASK, str(path)),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=True,
        start_new_session=True,
    )
    key = ("client-key" if is_apart else "client-certificate") + ("-data" if is_inline else "")
    told = (
        f'certificates to reach the API server: kubeconfig {path}: {key} of the user "test": the private key is'
        " encrypted, and nvdp asks nobody for its password; give it without one, as openssl pkey -in FILE writes it\n"
    )
    assert (asked.stdout, asked.stderr) == (told, "")


@pytest.mark.parametrize("key", ["client-certificate", "client-key"])
def test_a_file_without_what_it_should_hold_is_told_by_its_key(server: ApiServer, tmp_path: Path, key: str) -> None:
    (tmp_path / "file").write_text("no PEM")
    user = {"client-certificate": str(TLS / "client.crt"), "client-key": str(TLS / "client.key"), key: "file"}
    path = server.write_kubeconfig(tmp_path / "config", **user)
    of = 'of the user "test"'
    with pytest.raises(ClusterError, match=f"kubeconfig {path}: client-certificate {of} and .*: client-key {of}: "):
        build_access(path).find_way()


def test_a_ca_that_is_not_there_is_told_by_its_key(server: ApiServer, tmp_path: Path) -> None:
    cluster = {"server": server.url, "certificate-authority": "nowhere"}
    path = server.write_kubeconfig(tmp_path / "config", cluster=cluster)
    with pytest.raises(ClusterError) as caught:
        build_access(path).find_way()
    assert str(caught.value) == (
        f"certificates to reach the API server: kubeconfig {path}: certificate-authority of the cluster"
        ' "test": No such file or directory'
    )
