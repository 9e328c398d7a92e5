"""The JSON of what owning and renting cost: what ``trainrig cost --json`` prints."""

from __future__ import annotations

import dataclasses
from typing import Any

from trainrig.procure.ownership import SPREAD, CostAnswer, Way
from trainrig.procure.quoted_prices import QuotedPrice
from trainrig.procure.training_rate import TrainingRate


def cost_dict(answer: CostAnswer) -> dict[str, Any]:
    """Return the JSON of ``cost``."""
    rented = next((way for way in answer.ways if way.name != "buy"), None)
    result: dict[str, Any] = {
        "currency": answer.currency or None,
        "break_even_days": rented.break_even_days if rented else None,
        "break_even_months": None
        if rented is None or rented.break_even_days is None
        else rented.break_even_days / (365.0 / 12.0),
        "break_even_days_used": rented.break_even_days_used if rented else None,
        "break_even_utilisation": rented.break_even_utilisation if rented else None,
        "break_even_hours": rented.break_even_hours(answer.terms) if rented else None,
        "quoted": [_quote_dict(quote, answer.terms.machines) for quote in answer.quotes],
        "presumed": list(answer.presumed),
        "cheapest": answer.cheapest.name,
        "ways": {way.name: _way_dict(answer, way) for way in answer.ways},
        "sensitivity": [
            dataclasses.asdict(sensitivity) | {"spread": SPREAD}
            for sensitivity in answer.sensitivities
        ],
        "not_counted": list(answer.not_counted),
        "terms": dataclasses.asdict(answer.terms),
    }
    if numbers := answer.checkpoints():
        result["checkpoints"] = numbers
    if answer.peak and answer.terms.buy is not None:
        result["price_per_tflops"] = answer.terms.buy / (answer.peak / 1e12)
    if answer.memory and answer.terms.buy is not None:
        result["price_per_gib"] = answer.terms.buy / (answer.memory / 2.0**30)
    if answer.rate is not None:
        days = answer.days_of_training()
        result["training"] = {
            "tokens": answer.tokens,
            "tokens_per_s": answer.rate.tokens_per_s,
            "interval": {"tokens_per_s": [answer.rate.low, answer.rate.high]},
            "source": answer.rate.source,
            "gpus": answer.rate.gpus,
            "machines": answer.terms.machines,
            "gpu_watts": answer.rate.gpu_watts,
            "days": days[0] if days else None,
            "days_interval": list(days[1:]) if days else None,
            "days_wanted": answer.days,
            "in_time": None if days is None or answer.days is None else days[0] <= answer.days,
            "kwh": answer.kwh_of_training(),
            **_program(answer.rate),
        }
    return result


def _program(rate: TrainingRate) -> dict[str, Any]:
    from trainrig.prediction.as_json import program_dict  # where a training is predicted

    return {} if rate.prediction is None else program_dict(rate.prediction.question)


def _quote_dict(quote: QuotedPrice, machines: int) -> dict[str, Any]:
    return {
        "way": quote.way,
        "price": quote.price,
        "per": f"{quote.per}-hour",
        "count": quote.count(machines),
        "per_hour": quote.per_machine * machines,
    }


def _way_dict(answer: CostAnswer, way: Way) -> dict[str, Any]:
    per_million, training_price = answer.per_million_tokens(way), answer.of_training(way)
    return {
        "total": way.total,
        "parts": dict(way.parts),
        "per_useful_hour": way.per_hour,
        "break_even_days": way.break_even_days,
        "break_even_days_used": way.break_even_days_used,
        "break_even_utilisation": way.break_even_utilisation,
        "break_even_hours": way.break_even_hours(answer.terms),
        "goodput": answer.goodput_of(way),
        "per_million_tokens": per_million[0] if per_million else None,
        "per_million_tokens_interval": list(per_million[1:]) if per_million else None,
        "training": training_price[0] if training_price else None,
        "training_interval": list(training_price[1:]) if training_price else None,
    }


def changes(before: CostAnswer, after: CostAnswer) -> list[dict[str, Any]]:
    """Return predicted and measured numbers side by side, with their change."""

    cheapest = after.cheapest.name

    def rows(answer: CostAnswer) -> dict[str, float | None]:
        way, rate = answer.way(cheapest) or answer.cheapest, answer.rate
        days = answer.days_of_training()
        per_million = answer.per_million_tokens(way)
        return {
            "gpus": rate.gpus if rate else None,
            "machines": answer.terms.machines,
            "tokens_per_s": rate.tokens_per_s if rate else None,
            "gpu_watts": rate.gpu_watts if rate else None,
            "joules_per_token": rate.gpu_watts / rate.tokens_per_s
            if rate and rate.gpu_watts
            else None,
            "days": days[0] if days else None,
            "kwh": answer.kwh_of_training(),
            "per_useful_hour": way.per_hour,
            "per_million_tokens": per_million[0] if per_million else None,
            "break_even_days": cost_dict(answer)["break_even_days"],
        }

    old, new = rows(before), rows(after)
    return [
        {
            "what": name,
            "predicted": old[name],
            "measured": new[name],
            "change": (now / then - 1.0)
            if (then := old[name]) and (now := new[name]) is not None
            else None,
        }
        for name in old
        if new[name] is not None and not (name in ("gpus", "machines") and old[name] == new[name])
    ]
