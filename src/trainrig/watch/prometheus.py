"""What a machine does now, for Prometheus: its text format over HTTP.

Names follow Prometheus' conventions: a prefix, base units in the name, ``_total`` for what only
rises, ratios from 0 to 1.  A value that is not known is absent, never a zero.  Each scrape is one
look; two scrapers may ask at once.

Loopback is open to whoever is on the machine.  Beyond it every request has to bear a token, which
lies in a file that its owner alone may read; the wire is not encrypted: a reverse proxy or a tunnel
is for that.  Sources: prometheus.io/docs/practices/naming, .../instrumenting/exposition_formats.
"""

from __future__ import annotations

import hmac
import ipaddress
import socket
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib.metadata import version
from socketserver import TCPServer, ThreadingMixIn
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from trainrig.errors import UnavailableError, UsageError
from trainrig.record import Scalar
from trainrig.watch.live import LiveView

if TYPE_CHECKING:
    from wsgiref.types import WSGIApplication

    from prometheus_client import CollectorRegistry
    from prometheus_client.core import Metric

PORT = 9835
LOOPBACK = "127.0.0.1"
_GAUGES = {
    "temperature_c": ("temperature_celsius", "Temperature."),
    "power_w": ("power_watts", "Power drawn."),
    "sm_clock_hz": ("sm_clock_hertz", "Clock of the streaming multiprocessors."),
    "memory_clock_hz": ("memory_clock_hertz", "Clock of the memory."),
    "utilization": ("utilization_ratio", "Share of the time in which a kernel ran."),
    "memory_used_bytes": ("memory_used_bytes", "Memory in use."),
    "memory_total_bytes": ("memory_total_bytes", "Memory."),
    "pcie_generation": ("pcie_link_generation", "Generation of PCIe that its link runs at."),
    "pcie_width": ("pcie_link_lanes", "Lanes of PCIe that its link has."),
    "other_gpu_processes": ("processes", "Processes that have it open."),
    "cpu_share": ("utilization_ratio", "Share of all processors' time that was used."),
    "steal_share": ("steal_ratio", "Share of their time that the hypervisor took."),
    "load_1m": ("load1", "Load average over a minute."),
    "cpu_clock_hz": ("clock_hertz", "Median of a few processors' clocks."),
    "cpu_temperature_c": ("temperature_celsius", "Temperature of the hottest sensor."),
    "cpu_power_w": ("power_watts", "Power drawn by the packages."),
}
"""Prometheus' name and help of each sensor, by its name in a row of telemetry."""
_COUNTERS = {
    "corrected_volatile": ("ecc_corrected_errors", "Corrected memory errors since boot."),
    "uncorrected_volatile": ("ecc_uncorrected_errors", "Uncorrected memory errors since boot."),
    "ecc_corrected": ("ecc_corrected_errors", "Corrected memory errors since boot."),
    "ecc_uncorrected": ("ecc_uncorrected_errors", "Uncorrected memory errors since boot."),
    "pcie_replays": ("pcie_replays", "Packets that its link sent again."),
    "energy_j": ("energy_joules", "Energy used since the driver was loaded."),
    "cpu_energy_j": ("energy_joules", "Energy used by the packages."),
}


class LiveCollector:
    """Makes metrics of a look, whenever Prometheus asks."""

    def __init__(self, look: Callable[[], LiveView]) -> None:
        self._look = look
        self._one_at_a_time = threading.Lock()

    def describe(self) -> list[Any]:
        """Return nothing: Prometheus does not ask while the collector is registered."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of this moment."""
        with self._one_at_a_time:
            view = self._look()
        yield _family("trainrig_build_info", "Which trainrig this is.", {"version": _VERSION}, 1)
        yield from self._devices(view)
        yield from self._memory(view)
        yield from self._runs(view)
        yield from self._burns(view)

    def _devices(self, view: LiveView) -> Iterator[Metric]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        metrics: dict[str, Metric] = {}
        for device in view.devices:
            room = "cpu" if device.index is None else "gpu"
            labels = {"name": device.name}
            labels |= {} if device.index is None else {"gpu": str(device.index)}
            for key, (suffix, text) in _GAUGES.items():
                if (value := _float_or_none(device.readings.get(key))) is not None:
                    name = f"trainrig_{room}_{suffix}"
                    metrics.setdefault(name, GaugeMetricFamily(name, text, labels=list(labels)))
                    metrics[name].add_metric(list(labels.values()), value)  # type: ignore[attr-defined]
            for key, (suffix, text) in _COUNTERS.items():
                if (value := _float_or_none(device.readings.get(key))) is not None:
                    name = f"trainrig_{room}_{suffix}"
                    metrics.setdefault(name, CounterMetricFamily(name, text, labels=list(labels)))
                    metrics[name].add_metric(list(labels.values()), value)  # type: ignore[attr-defined]
            reasons = device.readings.get("throttle_reasons")
            for reason in reasons.split(",") if isinstance(reasons, str) and reasons else ():
                name, text = "trainrig_gpu_throttled", "1 while its clocks are held down so."
                names = [*labels, "reason"]
                metrics.setdefault(name, GaugeMetricFamily(name, text, labels=names))
                metrics[name].add_metric([*labels.values(), reason], 1.0)  # type: ignore[attr-defined]
        yield from metrics.values()

    def _memory(self, view: LiveView) -> Iterator[Metric]:
        for name, value in (
            ("total", view.memory_total_bytes),
            ("available", view.memory_available_bytes),
        ):
            if value is not None:
                yield _family(f"trainrig_memory_{name}_bytes", f"Main memory, {name}.", {}, value)

    def _runs(self, view: LiveView) -> Iterator[Metric]:
        yield _family("trainrig_jobs_running", "Jobs that run.", {}, len(view.jobs))
        rows = [({"run": run.run, "verb": run.verb}, 1.0) for run in view.runs]
        yield _gauges("trainrig_run_active", "1 while a process writes the run.", rows)
        for name, text, field in (
            ("tokens_per_second", "Tokens a second in the last step.", "tokens_per_s"),
            ("loss_nats", "Loss of the last step, in nats a target.", "loss"),
            ("gradient_norm", "Norm of the last step's gradient.", "grad_norm"),
            ("steps", "Steps that are done.", "step"),
            ("seconds_since_last_step", "Time since a step was written.", "age_s"),
        ):
            rows = [
                ({"run": training.run, "experiment": training.experiment}, float(value))
                for training in view.trainings
                if (value := getattr(training, field)) is not None
            ]
            yield _gauges(f"trainrig_training_{name}", text, rows)

    def _burns(self, view: LiveView) -> Iterator[Metric]:
        from prometheus_client.core import CounterMetricFamily

        rates = [
            (
                {"run": burn.run, "device": burn.device, "part": burn.part, "unit": burn.unit},
                burn.rate,
            )
            for burn in view.burns
            if burn.rate is not None
        ]
        yield _gauges("trainrig_burn_rate", "Rate of the last slice of work, in `unit`.", rates)
        text = "Wrong results since the burn began."
        errors = CounterMetricFamily("trainrig_burn_errors", text, labels=["run", "device"])
        for burn in view.burns:
            errors.add_metric([burn.run, burn.device], burn.errors)
        yield errors


_VERSION = version("trainrig")


def _float_or_none(value: Scalar | None) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def _family(name: str, text: str, labels: Mapping[str, str], value: float) -> Metric:
    return _gauges(name, text, [(labels, float(value))])


def _gauges(name: str, text: str, rows: Iterable[tuple[Mapping[str, str], float]]) -> Metric:
    from prometheus_client.core import GaugeMetricFamily

    rows = list(rows)
    labels = list(rows[0][0]) if rows else []
    family = GaugeMetricFamily(name, text, labels=labels)
    for label_values, value in rows:
        family.add_metric(list(label_values.values()), value)
    return family


def registry_of(look: Callable[[], LiveView]) -> CollectorRegistry:
    """Return the registry of metrics. Raises UnavailableError without prometheus_client."""
    try:
        from prometheus_client import CollectorRegistry
    except ModuleNotFoundError:
        hint = "pip install 'trainrig[metrics]'"
        raise UnavailableError("prometheus_client is not installed", hint) from None

    registry = CollectorRegistry(auto_describe=False)
    registry.register(LiveCollector(look))
    return registry


def text_of(registry: CollectorRegistry) -> str:
    """Return all metrics in Prometheus' text format."""
    from prometheus_client import generate_latest

    return generate_latest(registry).decode()


# ---- over HTTP


def is_loopback(address: str) -> bool:
    """Return whether an address is reachable from this machine only, or raise UsageError."""
    if address == "localhost":
        return True
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        hint = "an address of this machine, or 0.0.0.0 for all of them"
        raise UsageError(f"--bind {address}: not an IP address", hint) from None


def open_server(
    registry: CollectorRegistry, port: int = PORT, address: str = LOOPBACK, token: str | None = None
) -> WSGIServer:
    """Return a server that is bound and does not answer yet; `serve_forever` starts it.

    Raises UsageError for an address beyond loopback without a token; UnavailableError where it
    cannot be bound.
    """
    if token is None and not is_loopback(address):
        hint = "--token-file FILE (mode 600), or a forward: trainrig remote forward"
        raise UsageError(f"--bind {address} is beyond loopback, and there is no token", hint)
    try:
        family, *_, place = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
        kind = type("_Server", (_Server,), {"address_family": family})
        application = _application(registry, token)
        return make_server(str(place[0]), port, application, kind, _Handler)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        hint = "another one with --port, or --port 0 for any that is free"
        raise UnavailableError(f"port {port} on {address}: {reason.lower()}", hint) from None


class _Server(ThreadingMixIn, WSGIServer):
    """Answers each request in a thread of its own."""

    daemon_threads = True

    def server_bind(self) -> None:
        """Bind without asking a name server for this machine's name."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]
        self.setup_environ()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a connection that was opened and never used, or closed half-way."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


class _Handler(WSGIRequestHandler):
    """Says nothing on stderr, and does not wait for ever for a request."""

    timeout = 10

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name there
        """Drop the message: a scrape every 15 s is not worth a line."""


def _application(registry: CollectorRegistry, token: str | None) -> WSGIApplication:
    from prometheus_client import make_wsgi_app

    metrics = make_wsgi_app(registry)

    def answer(environ: Any, start_response: Any) -> Any:
        if token is None and not _is_own_name(str(environ.get("HTTP_HOST", ""))):
            start_response("403 Forbidden", [("Content-Type", "text/plain")])
            return [b"ask by a loopback address: another name may be a page's in a browser\n"]
        if token is not None and not _bears(environ.get("HTTP_AUTHORIZATION", ""), token):
            start_response("401 Unauthorized", [("WWW-Authenticate", "Bearer")])
            return [b"a token is needed: Authorization: Bearer ...\n"]
        if environ.get("PATH_INFO") not in ("/metrics", "/"):
            start_response("404 Not Found", [("Content-Type", "text/plain")])
            return [b"metrics are at /metrics\n"]
        return metrics(environ, start_response)

    return answer


def _is_own_name(host: str) -> bool:
    """Return whether a Host header names loopback; a page's name may resolve to it."""
    name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    try:
        return not name or is_loopback(name)
    except UsageError:
        return False


def _bears(header: str, token: str) -> bool:
    """Return whether a request's Authorization header has the token."""
    kind, _, credentials = header.partition(" ")
    same = hmac.compare_digest(credentials.strip().encode("utf-8", "replace"), token.encode())
    return kind.lower() == "bearer" and same


def address_of(server: WSGIServer) -> str:
    """Return the address of a server: ``http://127.0.0.1:9835/metrics``."""
    host, port = str(server.server_address[0]), server.server_port
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/metrics"
