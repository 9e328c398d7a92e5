"""One pipeline stage of a layout: its parameters, its activations, and the moments of a step.

Helper of `memory`, which says what is counted.  Every size may be an array of layouts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from trainrig.workload import buffers, ends
from trainrig.workload.kept import CORE, FULL, HALF, NONE, PRODUCTS, Kept, block_kept, total
from trainrig.workload.layout import Layout
from trainrig.workload.parameters import (
    adapter_parameters,
    attention_parameters,
    ffn_parameters,
    norm_parameters,
    parameters,
)
from trainrig.workload.shapes import ModelShape
from trainrig.workload.states import States, states_of
from trainrig.workload.style import Style, style_of

_SELECTIVE = {
    "plain": PRODUCTS,
    "ddp": HALF,
    "fsdp": HALF,
    "megatron": CORE,
    "deepspeed": CORE,
}
"""What an engine's selective recomputation keeps."""

Bytes = Any
"""A number of bytes, or an array of them."""
Parts = dict[str, Bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """The first or the last stage (the same one where pp is 1)."""

    shape: ModelShape
    layout: Layout
    last: bool
    head: float
    """Share of the tokens that logits are computed for."""
    style: Style
    states: States

    @property
    def blocks(self) -> tuple[Bytes, Bytes]:
        """Plain blocks, and those with cross-attention: the encoder's stages come first."""
        import numpy as np

        plain, crossed = self.shape.num_layers, self.shape.num_decoder_layers
        here = -(-(plain + crossed) // self.layout.pp)
        if self.last:
            of_crossed = np.minimum(here, crossed)
            return np.minimum(here - of_crossed, plain), of_crossed
        of_plain = np.minimum(here, plain)
        return of_plain, np.minimum(here - of_plain, crossed)

    @property
    def _alone(self) -> Any:
        import numpy as np

        return np.asarray(self.layout.pp) == 1

    @property
    def _has_loss(self) -> Any:
        return self._alone | self.last

    @property
    def _has_embedding(self) -> Any:
        return self._alone | (not self.last)

    @property
    def num_parameters(self) -> Bytes:
        """Of one rank, before ZeRO."""
        plain, crossed = self.blocks
        found = parameters(self.shape)
        tied_copy = found.embedding if self.shape.tied else 0
        num = plain * self._block_parameters(1) + crossed * self._block_parameters(2)
        num = num + self._has_embedding * found.embedding / self.layout.tp
        num = num + self._has_loss * found.head / self.layout.tp
        return num + (self._has_loss & ~self._has_embedding) * tied_copy / self.layout.tp

    def _block_parameters(self, num_attentions: int) -> Bytes:
        """Of one rank; norms are whole on each."""
        shape = self.shape
        shared = num_attentions * attention_parameters(shape) + ffn_parameters(shape)
        return shared / self.layout.tp + (num_attentions + 1) * norm_parameters(shape)

    @property
    def num_trained(self) -> Bytes:
        """All of them, or the adapters' (each split over tensor-parallel ranks)."""
        rank = self.layout.lora_rank
        if not rank:
            return self.num_parameters
        plain, crossed = self.blocks
        of_plain = adapter_parameters(self.shape, rank)
        of_crossed = adapter_parameters(self.shape, rank, decoder=True)
        return (plain * of_plain + crossed * of_crossed) / self.layout.tp

    @property
    def _sequence_shares(self) -> Bytes:
        import numpy as np

        return np.where(np.asarray(self.layout.sequence_parallel) > 0, self.layout.tp, 1)

    def sharded(self, stage: int) -> Bytes:
        """Ranks that share what ZeRO ``stage`` shards."""
        import numpy as np

        return np.where(np.asarray(self.layout.zero) >= stage, self.layout.shards, 1)

    # --- activations -----------------------------------------------------------------------

    @property
    def _seqs(self) -> tuple[int, int]:
        """Tokens read and tokens written of a sample."""
        read = self.layout.seq
        return read, (self.layout.target_seq or read) if self.shape.family == "t5" else read

    def _lists(self) -> tuple[list[Kept], list[Kept]]:
        read, written = self._seqs
        plain = block_kept(self.shape, self.style, read)
        if self.shape.family != "t5":
            return plain, []
        return plain, block_kept(self.shape, self.style, written, decoder=True, read=read)

    def _bytes(self, items: list[Kept], policy: str) -> Bytes:
        """One micro-batch of one block on one rank."""
        share = total(items, policy, split=True) / self.layout.tp
        rest = total(items, policy, split=False) / self._sequence_shares
        return (share + rest) * self.layout.micro_batch

    @property
    def policy(self) -> str:
        """Which tensors are kept."""
        if self.layout.recompute == "selective":
            return _SELECTIVE[self.layout.engine]
        return FULL if self.layout.recompute == "full" else NONE

    def waiting(self) -> Bytes:
        """Activations of all micro-batches that are under way, of the blocks."""
        plain, crossed = self._waiting()
        return (plain + crossed) * self._in_flight()

    def _waiting(self) -> tuple[Bytes, Bytes]:
        """Of one micro-batch: plain blocks, and those with cross-attention."""
        blocks, lists = self.blocks, self._lists()
        each = [n * self._bytes(i, self.policy) for n, i in zip(blocks, lists, strict=True)]
        return each[0], each[1]

    def _in_flight(self) -> Bytes:
        """Micro-batches whose activations this stage holds; a fraction with interleaved groups."""
        import numpy as np

        p, v, all_of_them = self.layout.pp, self.layout.interleave, self.layout.grad_accum
        if self.layout.schedule == "gpipe":
            return np.where(np.asarray(p) > 1, all_of_them, 1)
        first, last = p + np.where(np.asarray(v) > 1, (p - 1) / v, 0), 1 + p * (v - 1) / v
        return np.minimum(last if self.last else first, np.where(np.asarray(p) > 1, all_of_them, 1))

    def early(self) -> Bytes:
        """What the embedding keeps, for all micro-batches under way."""
        read, written = self._seqs
        size = ends.embedding_bytes(self.shape, self.style, read)
        if self.shape.family == "t5":
            size += ends.embedding_bytes(self.shape, self.style, written)
        size = size * self.layout.micro_batch / self._sequence_shares
        return self._has_embedding * size * self._in_flight()

    def late(self) -> Bytes:
        """What lies between the last block and the loss; T5 has another end after its encoder."""
        read, written = self._seqs
        size = ends.end_bytes(self.shape, self.style, written)
        if self.shape.family == "t5":
            size += ends.end_bytes(self.shape, self.style, read)
        return self._has_loss * size * self.layout.micro_batch / self._sequence_shares

    def in_one_block(self, *, decoder: bool = False) -> Bytes:
        """Backward of one block: what is computed again, and gradients on their way."""
        items = self._lists()[decoder]
        again = self._bytes(items, NONE) - self._bytes(_common(items, self.policy), NONE)
        return again + self._gradients(self._seqs[decoder])

    def _gradients(self, seq: int) -> Bytes:
        """The residual's gradient, and inside the branch that needs most."""
        import numpy as np

        shape, c = self.shape, self.style.compute
        b, tp = self.layout.micro_batch, self.layout.tp
        inside = c * seq * shape.ffn * (2 if shape.gated_ffn else 1)
        if not self.style.flash:
            freed = c * seq * shape.ffn * (3 if shape.gated_ffn else 2)
            scores = shape.num_heads * seq * seq * (8 - c if self.style.softmax == 4 else 2 * c)
            inside = max(inside, scores - freed)
        elif shape.positions == "relative":  # the gradient of a bias for each score
            inside = max(inside, c * shape.num_heads * seq * seq)
        ups = 2 if shape.gated_ffn else 1
        of_weights = self.states.passing_grad * shape.hidden * shape.ffn / tp
        outside = self.style.residual * seq * shape.hidden / self._sequence_shares
        if self.layout.lora_rank:
            return b * (inside / tp + outside)
        if self.layout.engine == "megatron":  # in fp32, before it is added to the buffer
            return b * (inside / tp + outside) + 4 * ups * shape.hidden * shape.ffn / tp
        return b * (inside / tp + outside) + np.where(self.grads_add_up, 0, of_weights)

    # --- moments ---------------------------------------------------------------------------

    @property
    def grads_add_up(self) -> Any:
        """Whether gradients of earlier micro-batches are there during this one."""
        import numpy as np

        return self.states.grads_add_up & (np.asarray(self.layout.grad_accum) > 1)

    def _standing(self, passing: Bytes) -> Parts:
        """What is there at any moment; ``passing``: the share of passing gradients that exist."""
        import numpy as np

        num, states = self.num_trained, self.states
        weights = states.weight * num / self.sharded(3)
        if self.layout.lora_rank:
            weights = weights + states.frozen * self.num_parameters / self.sharded(3)
        at_hand = self.layout.offload == "none"
        optimizer = num / self.sharded(1) * at_hand
        grads = (states.lasting_grad + states.passing_grad * passing) * num / self.sharded(2)
        if not at_hand:  # sharded ones follow the optimizer to the host
            grads = np.where(self.sharded(2) > 1, 0, grads)
        return {
            "weights": weights,
            "gradients": grads,
            "master": states.master * optimizer,
            "optimizer": states.moments * optimizer,
            "activations": 0,
            "logits": 0,
            "buffers": buffers.buffers(self.shape, self.layout, self.states, num),
        }

    def at_loss(self) -> Parts:
        """Every activation waits, and the logits exist."""
        parts = self._standing(passing=self.grads_add_up * 1.0)
        parts["weights"] = parts["weights"] + self.states.weight_copies * self.num_parameters
        parts["activations"] = self.waiting() + self.early() + self.late()
        logits = ends.loss_bytes(self.shape, self.layout, self.style, self._rows)
        parts["logits"] = self._has_loss * (logits + self._held())
        return parts

    def in_backward(self) -> Parts:
        """The last block's backward."""
        parts = self._standing(passing=self.grads_add_up * 1.0)
        parts["weights"] = parts["weights"] + self.states.weight_copies * self.num_parameters
        crossed = self.shape.num_decoder_layers > 0
        parts["activations"] = self.waiting() + self.early() + self.in_one_block(decoder=crossed)
        parts["buffers"] = parts["buffers"] + self._buckets()
        parts["logits"] = self._after_loss()
        return parts

    def in_encoder(self) -> Parts:
        """Backward of the last plain block, when those with cross-attention are done."""
        of_plain = self.blocks[0] * self._block_parameters(1)
        parts = self._standing(passing=1 - of_plain / self.num_parameters)
        plain, _ = self._waiting()
        parts["activations"] = plain * self._in_flight() + self.early() + self.in_one_block()
        parts["buffers"] = parts["buffers"] + self._buckets()
        parts["logits"] = self._after_loss()
        return parts

    def at_end(self) -> Parts:
        """All gradients exist, and the activations of a pipeline's other micro-batches."""
        parts = self._standing(passing=1.0)
        parts["activations"] = self.waiting() * (1 - 1 / self._in_flight()) + self.in_one_block()
        parts["buffers"] = parts["buffers"] + self._buckets()
        parts["logits"] = self._after_loss()
        return parts

    def in_update(self) -> Parts:
        """The optimizer."""
        parts = self._standing(passing=1.0)
        at_hand = self.layout.offload == "none"
        update = self.states.update * self.num_trained / self.sharded(1) * at_hand
        parts["optimizer"] = parts["optimizer"] + update
        parts["logits"] = self._after_loss()
        return parts

    def _buckets(self) -> Bytes:
        return buffers.buckets(self.layout, self.states, self.num_trained)

    @property
    def _rows(self) -> Bytes:
        """Tokens that logits are computed for."""
        return self.head * self._seqs[1] * self.layout.micro_batch

    def _after_loss(self) -> Bytes:
        return self._has_loss * ends.loss_rests(self.shape, self.style, self._rows)

    def _held(self) -> Bytes:
        """The rests of the micro-batch before, until the loss's name means the new one."""
        import numpy as np

        rests = ends.loss_rests(self.shape, self.style, self._rows)
        return np.where(np.asarray(self.layout.grad_accum) > 1, rests, 0)


def stage_of(shape: ModelShape, layout: Layout, *, last: bool, head: float = 1.0) -> Stage:
    """The first or the last stage of a layout."""
    style = style_of(shape, layout)
    states = states_of(layout, style)
    return Stage(shape=shape, layout=layout, last=last, head=head, style=style, states=states)


def _common(items: list[Kept], policy: str) -> list[Kept]:
    """What is kept in any case and by ``policy`` too."""
    return [item for item in items if policy in item.policies]
