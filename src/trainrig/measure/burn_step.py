"""Training steps of one transformer block that come out the same to the bit, over and over.

Definition.  A Llama block with plain attention, AdamW, a mean square against fixed targets, all in
the dtype of the case, by torch's deterministic algorithms; four steps from the same weights, then
again from the start.  Each step leaves a digest of every tensor on its way, in order: what each
module gives forward, the loss, what reaches it backward, the gradient of each weight, the weights
after the optimizer.  A digest is the sum of a tensor's integers times odd weights modulo 2^64: any
single flipped bit changes it, and so does any exchange of two words that differ.

Compared are the digests of each round of four with the first round's, on the device; equal devices
with each other and stored ones (golden) are the parent's (`runner.burn_golden`).  The first step
and tensor that differ are named: the fault lies between it and the tensor before.

It is for what products do not exercise: softmax, reductions, exponentials, elementwise kernels, the
order in which kernels hand on their results.  It runs at a training's rate, not at a peak.
"""

from __future__ import annotations

import hashlib
import struct
import time
from typing import TYPE_CHECKING, Any

from trainrig.measure import torch_dtype
from trainrig.measure.burn_slice import MOST_SHOWN, Slice, UnitTime, error_slice

if TYPE_CHECKING:
    import torch

STEPS = 4
"""Training steps in one round."""
SHAPES = {
    "tiny": {"hidden": 64, "heads": 2, "ffn": 96, "tokens": 16, "batch": 1},
    "cpu": {"hidden": 256, "heads": 4, "ffn": 688, "tokens": 128, "batch": 2},
    "small gpu": {"hidden": 2048, "heads": 16, "ffn": 5504, "tokens": 512, "batch": 2},
    "gpu": {"hidden": 4096, "heads": 32, "ffn": 11008, "tokens": 1024, "batch": 2},
}
_LEARNING_RATE = 1e-3
_MOST_ROUNDS = 64
_MASK = 2**64
_ROOMY = 12 << 30


class DeterministicSteps:
    """The check of training steps on one device."""

    unit = "FLOP/s"
    what = "steps"

    def __init__(self, dtype: str, device: str, *, sizes: str = "", seed: int = 0) -> None:
        """Build the block and run the first round, which all others are compared with.

        ``sizes`` names one of SHAPES; the device's usual ones without it.
        """
        import torch

        from trainrig import models
        from trainrig.workload import named

        torch.use_deterministic_algorithms(True)
        torch.backends.cuda.matmul.allow_tf32 = dtype == "tf32"
        self.dtype, self.device = dtype, device
        block_sizes = SHAPES[sizes or _usual_sizes(device)]
        shape = named("llama-7B").replace(
            hidden=block_sizes["hidden"],
            num_heads=block_sizes["heads"],
            num_kv_heads=block_sizes["heads"],
            ffn=block_sizes["ffn"],
        )
        kind = torch_dtype(dtype)
        # Drawn on the host: every device begins with the same bits.
        generator = torch.Generator().manual_seed(seed)
        block = models.build_block(shape, device="cpu", attention="plain")
        with torch.no_grad():
            for weight in block.parameters():
                scale = weight.shape[-1] ** -0.5 if weight.ndim > 1 else 0.1
                values = torch.randn(weight.shape, generator=generator)
                weight.copy_(values * scale + float(weight.ndim == 1))
        self._block = block.to(device=device, dtype=kind)
        self._weights = dict(self._block.named_parameters())
        self._start = {name: weight.detach().clone() for name, weight in self._weights.items()}
        self._optimizer = torch.optim.AdamW(
            self._block.parameters(), lr=_LEARNING_RATE, foreach=False, fused=False
        )
        size = (STEPS, block_sizes["batch"], block_sizes["tokens"], block_sizes["hidden"])
        drawn = [torch.randn(size, generator=generator).to(device, kind) for _ in range(2)]
        self._inputs, self._targets = drawn
        self._extra = models.block_inputs(shape, self._inputs[0])[1:]
        self._factors: dict[int, torch.Tensor] = {}
        self._names: list[str] = []
        self._digests: list[torch.Tensor] = []
        for name, module in self._block.named_modules():
            if not list(module.children()):
                module.register_forward_hook(self._note_forward(name or "block"))
        self._unit_time = UnitTime(_MOST_ROUNDS)
        self._rounds = 0
        self._flops = self._step_flops(block_sizes) * STEPS
        self.names: tuple[str, ...] = ()
        """Tensors of a step, in order."""
        self._first = self._round()

    @staticmethod
    def _step_flops(sizes: dict[str, int]) -> float:
        """Products of a block, forward and twice that backward: 8bsh² + 4bs²h + 6bshf."""
        b, s, h, f = (sizes[name] for name in ("batch", "tokens", "hidden", "ffn"))
        return 3.0 * (8.0 * b * s * h * h + 4.0 * b * s * s * h + 6.0 * b * s * h * f)

    # ---- digests

    def _note(self, name: str, tensor: torch.Tensor) -> None:
        """Add the digest of a tensor as it is now."""
        import torch

        words = {2: torch.int16, 4: torch.int32, 8: torch.int64}
        flat = tensor.detach().contiguous().view(-1)
        numbers = flat.view(words[flat.element_size()]).to(torch.int64)
        if flat.numel() not in self._factors:
            factors = torch.arange(flat.numel(), device=flat.device, dtype=torch.int64)
            self._factors[flat.numel()] = factors.mul_(2).add_(1)
        self._names.append(name)
        self._digests.append((numbers * self._factors[flat.numel()]).sum())

    def _note_forward(self, name: str) -> Any:
        def hook(_: Any, __: Any, output: Any) -> None:
            tensor = output[0] if isinstance(output, tuple) else output
            self._note(f"forward {name}", tensor)
            if tensor.requires_grad:
                tensor.register_hook(lambda gradient: self._note(f"backward {name}", gradient))

        return hook

    def _step(self, number: int) -> torch.Tensor:
        """Run one training step and return a digest for each tensor, shape (tensors,)."""
        import torch

        self._names, self._digests = [], []
        self._optimizer.zero_grad(set_to_none=True)
        out = self._block(self._inputs[number], *self._extra)
        loss = (out.float() - self._targets[number].float()).square().mean()
        self._note("loss", loss.reshape(1))
        loss.backward()
        for name, weight in self._weights.items():
            assert weight.grad is not None
            self._note(f"gradient {name}", weight.grad)
        self._optimizer.step()
        for name, weight in self._weights.items():
            self._note(f"weight {name}", weight)
        return torch.stack(self._digests)

    def _round(self) -> torch.Tensor:
        """Four steps from the start: their digests, (steps, tensors)."""
        import torch

        with torch.no_grad():
            for name, weight in self._weights.items():
                weight.copy_(self._start[name])
        self._optimizer.state.clear()
        rows = [self._step(number) for number in range(STEPS)]
        self.names = tuple(self._names)
        return torch.stack(rows)

    # ---- what is run

    def run(self, seconds: float) -> Slice:
        """Run rounds for about ``seconds`` and compare each with the first."""
        count = self._unit_time.count(seconds)
        start = time.perf_counter()
        rounds = [self._round() for _ in range(count)]
        errors, num_wrong = [], 0
        for number, digests in enumerate(rounds, start=self._rounds + 2):
            text, wrong = self._difference(digests, number)
            num_wrong += wrong
            errors += [text] if text else []
        took = time.perf_counter() - start
        self._unit_time.learn(count, took)
        self._rounds += count
        return Slice(
            work=self._flops * count,
            seconds=took,
            num_checked=STEPS * count,
            num_errors=num_wrong,
            errors=tuple(errors[:MOST_SHOWN]),
        )

    def _difference(self, digests: torch.Tensor, number: int) -> tuple[str, int]:
        """Return the first difference from the first round, and the number of steps that differ."""
        differs = digests != self._first
        if not bool(differs.any()):
            return "", 0
        step, tensor = differs.nonzero()[0].tolist()
        num = int(differs.any(dim=1).sum())
        location = where(step, self.names[tensor], number)
        return f"{location}: not what it was in the first round", num

    def finish(self) -> Slice:
        """Return an empty slice: every round compares its results itself."""
        return error_slice(0.0, ())

    def facts(self) -> dict[str, Any]:
        """Return the digest of each step."""
        rows = self._first.tolist()
        return {f"digest_{number}": digest_of(row) for number, row in enumerate(rows, start=1)}

    def digests(self) -> list[list[int]]:
        """Return the first round's digests, (steps, tensors)."""
        found: list[list[int]] = self._first.tolist()
        return found


def _usual_sizes(device: str) -> str:
    """Return the largest of SHAPES that fits the device: weights, moments, 64-bit digests."""
    import torch

    if device == "cpu":
        return "cpu"
    return "gpu" if torch.cuda.mem_get_info(device)[0] >= _ROOMY else "small gpu"


def where(step: int, tensor: str, number: int | None = None) -> str:
    """Return ``step 2, gradient attention.q.weight``, with the round if one is given."""
    round_suffix = "" if number is None else f" of round {number}"
    return f"step {step + 1}{round_suffix}, {tensor}"


def digest_of(row: list[int]) -> str:
    """Sixteen hex digits that name the digests of a step."""
    packed = struct.pack(f"<{len(row)}Q", *(value % _MASK for value in row))
    return hashlib.sha256(packed).hexdigest()[:16]
