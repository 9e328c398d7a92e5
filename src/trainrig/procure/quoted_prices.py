"""Prices as people quote them: an hour of a GPU or of a machine, and a presumed kWh.

Clouds quote by the GPU-hour, by the machine-hour, or by an hour of they do not say what.  An hour
alone is taken where a machine has one GPU, or where nothing tells how many it has; where the two
readings differ it is refused.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from trainrig.errors import UsageError
from trainrig.units import counted, format_money

HOURLY = {"rent": "rent_per_hour", "reserved": "reserved_per_hour", "spot": "spot_per_hour"}
"""Ways that are paid by the hour, and the term of `ownership.Terms` that has a machine's price."""
_PLAIN, _GPU, _MACHINE = "{}_per_hour", "{}_per_gpu_hour", "{}_per_machine_hour"


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotedPrice:
    """A price of an hour, as it was quoted."""

    way: str
    """Name of the way, one of HOURLY."""
    price: float
    per: str
    """Thing that the price is of: ``GPU`` or ``machine``."""
    gpus_per_machine: float | None
    """GPUs of one machine; None where nothing tells."""

    @property
    def per_machine(self) -> float:
        """Price of one machine's hour."""
        return self.price * (self.gpus_per_machine or 1.0) if self.per == "GPU" else self.price

    def count(self, machines: int) -> int:
        """Return how many of what is priced some machines are."""
        if self.per == "machine":
            return machines
        return round(machines * (self.gpus_per_machine or 1.0))

    def text(self, machines: int, currency: str) -> str:
        """Return the multiplication: ``2.50 USD per GPU-hour × 64 GPUs = 160 USD an hour``."""
        hour = format_money(self.per_machine * machines, currency)
        times = counted(self.count(machines), self.per)
        price = format_money(self.price, currency)
        return f"{price} per {self.per}-hour × {times} = {hour} an hour"


def take_quoted(
    values: MutableMapping[str, float], gpus_per_machine: float | None
) -> tuple[QuotedPrice, ...]:
    """Take the hourly prices out of ``values``.

    Args:
        values: Options that were given; those of hours are removed.
        gpus_per_machine: GPUs of one machine; None where nothing tells.

    Raises:
        UsageError: An hour of a machine with several GPUs without saying of what, an hour of a GPU
            where nothing tells how many a machine has, or two prices of one way.
    """
    return tuple(_quoted(values, gpus_per_machine))


def _quoted(values: MutableMapping[str, float], gpus: float | None) -> Iterator[QuotedPrice]:
    for way in HOURLY:
        names = [form.format(way) for form in (_PLAIN, _GPU, _MACHINE)]
        quoted_values = {name: values.pop(name) for name in names if name in values}
        if len(quoted_values) > 1:
            first, second, *_ = map(_option, quoted_values)
            raise UsageError(f"{first} and {second} are both given", "one price for one way")
        for name, price in quoted_values.items():
            if name == _PLAIN.format(way) and gpus is not None and gpus != 1:
                per_gpu, per_machine = _option(_GPU.format(way)), _option(_MACHINE.format(way))
                raise UsageError(
                    f"{_option(name)} {price:g}: an hour of one GPU, or of a machine of "
                    f"{counted(round(gpus), 'GPU')}?",
                    f"{per_gpu} {price:g} or {per_machine} {price:g}",
                )
            if name == _GPU.format(way) and gpus is None:
                hint = "--gpus, or --on with its number: --on '8x H100 SXM'"
                raise UsageError(f"{_option(name)}: how many GPUs has a machine?", hint)
            per = "GPU" if name == _GPU.format(way) else "machine"
            yield QuotedPrice(way=way, price=price, per=per, gpus_per_machine=gpus)


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")


@dataclass(frozen=True, slots=True, kw_only=True)
class PresumedKwh:
    """A presumed price of a kWh, and what it is an average of."""

    kwh: float
    what: str


def presumed_kwh(currency: str) -> PresumedKwh | None:
    """Return what a kWh is presumed to cost: in dollars where no currency is named.

    Args:
        currency: Three letters; empty where none was named.
    """
    entry = _kwh_prices().get(currency or "USD")
    return None if entry is None else PresumedKwh(kwh=entry["kwh"], what=entry["what"])


@cache
def _kwh_prices() -> Mapping[str, Mapping[str, Any]]:
    text = resources.files("trainrig.catalog").joinpath("electricity.toml").read_text("utf-8")
    return tomllib.loads(text)
