"""What it costs a burn to compare every product: its checked rate beside the same unchecked.

The same operands, shapes and loop, in turns of about two seconds in one process; the check is all
that differs.  Peer: the loop without it.  On the first GPU where there is one, else on the host's
processors.  Target: 97 % of the unchecked rate.
"""

from __future__ import annotations

from functools import partial
from statistics import median

from _shared import in_turns, options, say_load, trained_in

from trainrig.measure.burn_matmul import Products


def main() -> None:
    """Print both rates and their ratio."""
    parser = options(__doc__)
    parser.add_argument("--dtype", default=None)
    parser.add_argument("--device", default=None)
    arguments = parser.parse_args()
    import torch

    has_gpu = torch.cuda.is_available()
    device = arguments.device or ("cuda:0" if has_gpu else "cpu")
    usual = ("bf16", "fp32") if has_gpu else trained_in()
    dtypes = (arguments.dtype,) if arguments.dtype else usual
    rounds, seconds, shape = (2, 0.05, (256, 256, 256)) if arguments.quick else (15, 2.0, None)
    say_load()
    for dtype in dtypes:
        checked = Products(dtype, device, shape)
        bare = Products(dtype, device, shape, is_checked=False)
        for products in (checked, bare):  # first calls set up; the second knows its pace
            products.run(seconds)
            products.run(seconds)
        found = in_turns(
            rounds,
            {"checked": partial(rate, checked, seconds), "bare": partial(rate, bare, seconds)},
        )
        pairs = [one / other for one, other in zip(found["checked"], found["bare"], strict=True)]
        best = max(found["checked"]) / max(found["bare"])
        print(
            f"{dtype} on {device}: checked {median(found['checked']) / 1e9:.1f} GFLOPS, "
            f"unchecked {median(found['bare']) / 1e9:.1f}; best against best {best:.3f}"
        )
        print(f"ratio {median(pairs):.3f} of checked to unchecked {dtype} (target 0.97)")


def rate(products: Products, seconds: float) -> float:
    """FLOP/s of one turn."""
    done = products.run(seconds)
    if done.num_errors:
        raise SystemExit(f"wrong: {done.errors[0]}")
    return done.work / done.seconds


if __name__ == "__main__":
    main()
