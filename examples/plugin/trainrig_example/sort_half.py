"""The measuring half of ``sort``; it runs in a worker process."""

from trainrig.benchmarks.spec import size_in
from trainrig.measure.timing import Prepared
from trainrig.record import Case


def prepare(case: Case, device: str) -> Prepared:
    """Return the sort of the case's numbers on ``device``, and the check of what it left."""
    import torch

    generator = torch.Generator().manual_seed(1)
    numbers = torch.randn(size_in(case, "num_elements"), generator=generator).to(device)
    values, indices = torch.empty_like(numbers), torch.empty(len(numbers), dtype=torch.int64)
    output = (values, indices.to(device))

    def wrong() -> str | None:
        torch.sort(numbers, out=output)
        in_order = bool((output[0].diff() >= 0).all())
        return None if in_order and numbers[output[1]].equal(output[0]) else "not in order"

    return Prepared(call=lambda: torch.sort(numbers, out=output), wrong=wrong)
