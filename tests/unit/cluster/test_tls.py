"""Mutual TLS of the coordination service, as clusters.md says: with certificates of one authority
processes find each other, and without they do not.
"""

import os
import re
import shutil
import subprocess
import sys

import pytest
from places import ROOT

from shardlab.cluster.worker import free_ports

pytestmark = [
    pytest.mark.slow,
    pytest.mark.reads("book/clusters.md", "src/shardlab/cluster"),
    pytest.mark.skipif(not shutil.which("openssl"), reason="openssl makes the certificates"),
]

TEXT = (ROOT / "book" / "clusters.md").read_text("utf-8")
SAID = dict(re.findall(r"(JAX_\w*(?:MTLS|SECURE)\w*)=(\S+)", TEXT))
JOIN = """
import sys
import jax
rank, port = sys.argv[1:]
jax.distributed.initialize(f"localhost:{port}", 2, int(rank), initialization_timeout=6)
print("joined", jax.process_count())
"""


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    """A folder with the three files of the text, and a certificate that nobody has signed."""
    folder = tmp_path_factory.mktemp("certificates")
    (folder / "names").write_text("subjectAltName=DNS:localhost")
    key = "-newkey rsa:2048 -nodes -keyout"
    for command in (
        f"req -x509 {key} ca.key -out ca.pem -subj /CN=authority",
        f"req {key} node.key -out node.csr -subj /CN=node",
        "x509 -req -in node.csr -CA ca.pem -CAkey ca.key -CAcreateserial -out node.pem "
        "-extfile names",
        f"req -x509 {key} other.key -out other.pem -subj /CN=localhost",
    ):
        command = ["openssl", *command.split()]
        subprocess.run(command, cwd=folder, check=True, capture_output=True)
    return folder


def joined(folder, first, second):
    """What two processes print, each with variables of its own, and how they end."""
    (port,) = free_ports(1)
    clean = {name: value for name, value in os.environ.items() if name[:4] not in ("JAX_", "XLA_")}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", JOIN, str(rank), str(port)],
            cwd=folder,
            env=clean | {"JAX_PLATFORMS": "cpu"} | variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank, variables in enumerate((first, second))
    ]
    said = [one.communicate(timeout=120) for one in processes]
    return [out.strip() for out, _ in said], [one.returncode for one in processes], said


def test_with_certificates_of_one_authority_processes_find_each_other(certificates):
    assert len(SAID) == 4 and SAID["JAX_MTLS_CA_FILE"] == "ca.pem"
    printed, ends, said = joined(certificates, SAID, SAID)
    assert printed == ["joined 2"] * 2 and ends == [0, 0], said


@pytest.mark.parametrize("which", ["no certificate", "another authority's"])
def test_a_process_without_one_does_not_join(certificates, which):
    other = {"JAX_MTLS_CERT_FILE": "other.pem", "JAX_MTLS_KEY_FILE": "other.key"}
    printed, ends, said = joined(
        certificates, SAID, {} if which == "no certificate" else SAID | other
    )
    assert printed == ["", ""] and 0 not in ends, said


def test_the_last_variable_ends_a_program_that_has_no_certificate(certificates):
    only = {name: value for name, value in SAID.items() if "VERIFY" in name}
    printed, ends, said = joined(certificates, only, only)
    assert len(only) == 1 and printed == ["", ""] and 0 not in ends, said
    assert "secure" in said[0][1].lower() or "credential" in said[0][1].lower(), said
