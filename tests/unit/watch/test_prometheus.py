"""Metrics for Prometheus, read by its own parser; who may ask for them."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from live_views import BURN, RUN, Looker, view
from trainrig.errors import UnavailableError, UsageError
from trainrig.watch.prometheus import address_of, is_loopback, open_server, registry_of, text_of

TOKEN = "0123456789abcdef0123"


def samples(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


@contextmanager
def served(token: str | None = None, address: str = "127.0.0.1") -> Iterator[str]:
    server = open_server(registry_of(Looker().look), 0, address, token)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield address_of(server)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def asked(url: str, **headers: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers)) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_the_numbers_of_a_look_by_prometheus_own_parser() -> None:
    text = text_of(registry_of(view))
    found = samples(text)
    card = (("gpu", "0"), ("name", "NVIDIA GeForce RTX 4090"))
    assert found["trainrig_gpu_temperature_celsius", card] == 66.0
    assert found["trainrig_gpu_power_watts", card] == 412.5
    assert found["trainrig_gpu_sm_clock_hertz", card] == 2.52e9
    assert found["trainrig_gpu_utilization_ratio", card] == 0.98
    assert found["trainrig_gpu_ecc_corrected_errors_total", card] == 3
    assert found["trainrig_gpu_energy_joules_total", card] == 1.5e6
    hot = (("gpu", "1"), card[1], ("reason", "hw_thermal_slowdown"))
    assert found["trainrig_gpu_throttled", hot] == 1
    training = (("experiment", "gpt2-124m"), ("run", RUN))
    assert found["trainrig_training_steps", training] == 120
    assert found["trainrig_training_tokens_per_second", training] == pytest.approx(11_708, abs=1)
    assert found["trainrig_training_loss_nats", training] == pytest.approx(4.114, abs=1e-3)
    burn = (("device", "RTX 4090 #1"), ("run", BURN))
    assert found["trainrig_burn_errors_total", burn] == 2
    assert found["trainrig_jobs_running", ()] == 1
    assert found["trainrig_memory_total_bytes", ()] == 64 << 30
    # The third GPU's driver says nothing, and so does its line: no zero stands for it.
    assert not [key for key in found if ("gpu", "2") in key[1]]


def test_names_have_a_prefix_and_a_base_unit() -> None:
    for family in text_string_to_metric_families(text_of(registry_of(view))):
        assert family.name.startswith("trainrig_") and family.documentation
        assert not family.name.endswith(("_c", "_w", "_hz", "_ms", "_percent", "_mb"))


def test_loopback_answers_at_its_path_alone() -> None:
    with served() as url:
        code, text = asked(url)
        assert code == 200 and samples(text)
        assert asked(url.replace("/metrics", "/etc/passwd"))[0] == 404


def test_a_token_is_asked_for_where_there_is_one() -> None:
    with served(TOKEN) as url:
        for given in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": f"Basic {TOKEN}"}):
            code, text = asked(url, **given)
            assert code == 401 and "trainrig_" not in text and TOKEN not in text
        assert asked(url, Authorization=f"Bearer {TOKEN}")[0] == 200


def test_beyond_loopback_there_is_no_serving_without_a_token() -> None:
    with pytest.raises(UsageError, match="beyond loopback"):
        open_server(registry_of(view), 0, "0.0.0.0")
    with served(TOKEN, "0.0.0.0") as url:
        assert asked(url.replace("0.0.0.0", "127.0.0.1"))[0] == 401
    assert is_loopback("::1") and is_loopback("127.0.0.2") and not is_loopback("::")
    with pytest.raises(UsageError, match="not an IP address"):
        is_loopback("my-host")


def test_a_port_that_is_in_use_is_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UnavailableError, match=rf"port {port} on 127.0.0.1: .*in use"):
            open_server(registry_of(view), port)


def test_the_verb_serves_until_it_is_interrupted(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text(TOKEN + "\n")
    token.chmod(0o600)
    command = [sys.executable, "-m", "trainrig", "metrics", "--port", "0", "--json"]
    with subprocess.Popen(
        [*command, "--token-file", str(token)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": "src", "XDG_STATE_HOME": str(tmp_path)},
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        where = json.loads(process.stdout.readline())
        assert where["token"] is True
        assert asked(where["url"])[0] == 401
        code, text = asked(where["url"], Authorization=f"Bearer {TOKEN}")
        assert code == 200 and any(key[0] == "trainrig_cpu_load1" for key in samples(text))
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0
        assert process.stderr.read().strip() == "metrics ended"
