"""A bundle by default holds none of what names people, machines and folders."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trainrig.store import create_run, pack, read_run
from trainrig.store.bundle import open_bundle
from trainrig.store.redact import redacted_name

PLANTED = (
    "thehost42",
    "somebody77",
    "/home/somebody77/secret/data",
    "52:54:00:ab:cd:ef",
    "SER1234567",
    "eth-secret0",
    "GPU-01234567-89ab-cdef-0123-456789abcdef",
    "0123456789abcdef0123456789abcdef",
)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("LOGNAME", "somebody77")
    host, user, path, mac, serial, interface, gpu, machine = PLANTED
    config = {"argv": [path, f"--by={user}"], "note": f"of {user} at {host}: {mac}"}
    with create_run(tmp_path / "runs", "qualify", config) as writer:
        writer.write_machine(
            {
                "schema": 1,
                "host": {"hostname": host, "machine": machine},
                "gpus": [{"index": 0, "uuid": gpu, "serial": serial}],
                "software": {"environment": {"NCCL_SOCKET_IFNAME": interface, "NCCL_ALGO": "Ring"}},
            }
        )
        writer.append_series("notes", {"t": 1.0, "text": f"{path}/x of {host}.example"})
        writer.write_report(f"<p>{host} {user} {path}</p>")
        return writer.path


def test_planted_secrets_are_not_in_a_bundle(run: Path, tmp_path: Path) -> None:
    pack(run, tmp_path / "a.bundle", redact=True)
    name, files = open_bundle(tmp_path / "a.bundle")
    whole = name.encode() + b"".join(files.values())
    for secret in PLANTED:
        assert secret.encode() not in whole, secret
    machine = json.loads(files["machine.json"])
    assert machine["software"]["environment"]["NCCL_ALGO"] == "Ring"
    assert "report.html" not in files
    assert read_run(tmp_path / "a.bundle").config["verb"] == "qualify"
    # The same machine has the same id in the next bundle of this user.
    pack(run, tmp_path / "b.bundle", redact=True)
    again = json.loads(open_bundle(tmp_path / "b.bundle")[1]["machine.json"])
    assert again["host"]["machine"] == machine["host"]["machine"]


def test_a_bundle_is_not_called_after_its_host(run: Path) -> None:
    machine = {"host": {"hostname": "the_host.lab.example"}}
    name = redacted_name("20260101T120000Z-the-host-lab-example-qualify-ab12cd", machine)
    assert name == "20260101T120000Z-host-qualify-ab12cd"
    assert "the_host" not in redacted_name("of the_host", machine)


def test_a_full_bundle_keeps_all(run: Path, tmp_path: Path) -> None:
    pack(run, tmp_path / "a.bundle")
    whole = b"".join(open_bundle(tmp_path / "a.bundle")[1].values())
    for secret in PLANTED:
        assert secret.encode() in whole
