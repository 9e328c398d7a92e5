"""One pipeline stage of a layout: its parameters, and what its activations take.

Helper of `memory`, which says what is counted.  Every size may be an array of layouts; what is
asked for more than once is computed once.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

from trainrig.workload.adapters import adapter_parameters
from trainrig.workload.arrays import choose, is_any, larger, smaller
from trainrig.workload.blocks import FULL, NONE, SavedTensor, saved_tensors, selective_policy, total
from trainrig.workload.layout import Layout
from trainrig.workload.layout_rules import longest_stage
from trainrig.workload.memory import overheads
from trainrig.workload.model import (
    ModelShape,
    block_parameters,
    expert_parameters,
    final_norm_parameters,
    norm_parameters,
    parameters,
)
from trainrig.workload.numerics import FROZEN, Numerics, States, numerics_of, states_of

Bytes = Any
"""A number of bytes, or an array of them."""


@dataclass(frozen=True, kw_only=True)  # without slots: cached properties need a dictionary
class Stage:
    """The first, an inner or the last stage (all the same one where pp is 1)."""

    shape: ModelShape
    layout: Layout
    last: bool
    inner: bool
    """Behind the first one: maybe a layer more than that, and a micro-batch less under way."""
    head: float
    """Share of the tokens that logits are computed for."""
    numerics: Numerics
    states: States

    # --- parameters ------------------------------------------------------------------------

    @cached_property
    def blocks(self) -> tuple[Bytes, Bytes]:
        """Plain blocks, and those with cross-attention: the encoder's stages come first.

        Where stages cannot be equal, the last one lacks a block, then the first one.
        """
        plain, crossed = self.shape.num_layers, self.shape.num_decoder_layers
        here = longest_stage(self.shape, self.layout.mesh.pp)
        if not crossed:
            lacking = here * self.layout.mesh.pp - plain
            if (
                self.layout.pipeline.v_schedule and not self.inner
            ):  # DualPipe: the mean of its two stages
                return here - smaller(lacking, 2) / self.layout.pipeline.stage_copies, 0
            return here - (0 if self.inner else 1 * (lacking >= (1 if self.last else 2))), 0
        if self.last:
            of_crossed = smaller(here, crossed)
            return smaller(here - of_crossed, plain), of_crossed
        of_plain = smaller(here, plain)
        return of_plain, smaller(here - of_plain, crossed)

    @cached_property
    def has_loss(self) -> Any:
        """1 where the head is on this stage."""
        return self._alone | int((self.last or self.layout.pipeline.v_schedule) and not self.inner)

    @cached_property
    def has_embedding(self) -> Any:
        """1 where the embedding is on this stage."""
        return self._alone | int(
            (self.layout.pipeline.v_schedule or not self.last) and not self.inner
        )

    @cached_property
    def _alone(self) -> Any:
        return 1 * (self.layout.mesh.pp == 1)

    @cached_property
    def end_parameters(self) -> Bytes:
        """Parameters of embedding, final norm and head on this stage, of one rank.

        The last of several stages holds a copy of an embedding that is the logits' matrix, too.
        """
        count = parameters(self.shape)
        tied_copy = self.has_loss * count.embedding if self.shape.head.tied else 0
        ends = self.has_embedding * count.embedding + self.has_loss * count.head
        norms = self.has_loss * final_norm_parameters(self.shape)
        return (ends + (1 - self.has_embedding) * tied_copy) / self.layout.mesh.tp + norms

    @cached_property
    def num_parameters(self) -> Bytes:
        """Parameters of one rank, before ZeRO."""
        plain, crossed = self.blocks
        num = plain * self.block_parameters() + crossed * self.block_parameters(decoder=True)
        return self.layout.pipeline.stage_copies * num + self.end_parameters

    def copies(self, *, at_loss: bool) -> Bytes:
        """Return bytes of narrow copies of weights, which wait for their product's backward.

        Of blocks that are computed again only those of one at a time: at the loss, the head's.
        """
        if not self.states.weight_copies:
            return 0.0
        num = self.num_parameters
        if self.layout.memory.recompute == "full" and at_loss:
            num = self.has_loss * self.shape.vocab * self.shape.hidden / self.layout.mesh.tp
        elif self.layout.memory.recompute == "full":
            num = self.block_parameters(decoder=self.shape.num_decoder_layers > 0)
        return self.states.weight_copies * num

    def block_parameters(self, *, decoder: bool = False) -> Bytes:
        """Return one rank's parameters of an average block; norms are whole on each.

        What is less than the matrices make (``vectors`` below 0: ALBERT's blocks share them) is
        less of the matrices, and split as they are.
        """
        shape = self.shape
        norms = (3 if decoder else 2) * norm_parameters(shape) + max(shape.vectors, 0)
        whole = block_parameters(shape, decoder=decoder) - norms
        if not shape.moe.num_experts:
            return whole / self.layout.mesh.tp + norms
        dense = shape.moe.dense_layers / shape.num_layers
        others = whole - expert_parameters(shape)
        plain = dense * (block_parameters(shape, dense=True) - norms) + (1.0 - dense) * others
        return plain / self.layout.mesh.tp + norms + self.expert_parameters

    @cached_property
    def expert_parameters(self) -> Bytes:
        """Return one rank's parameters of an average block's experts.

        Which other ranks share than the rest.
        """
        shape = self.shape
        if not shape.moe.num_experts:
            return 0.0
        mixed = 1.0 - shape.moe.dense_layers / shape.num_layers
        return mixed * expert_parameters(shape) / self._expert_ranks

    @cached_property
    def _expert_ranks(self) -> Bytes:
        """Ranks that share one set of experts."""
        return self.layout.mesh.ep * self.layout.mesh.expert_tp

    @cached_property
    def num_trained(self) -> Bytes:
        """Return all of them, or the adapters' (each split over tensor-parallel ranks)."""
        layout, rank = self.layout, self.layout.lora.rank
        if not rank:
            return self.num_parameters
        plain, crossed = self.blocks
        of_plain, of_crossed = (
            adapter_parameters(
                self.shape, rank, on=layout.adapted, ep=layout.mesh.ep, decoder=decoder
            )
            for decoder in (False, True)
        )
        return (plain * of_plain + crossed * of_crossed) / self.layout.mesh.tp

    @cached_property
    def last_gradients(self) -> Bytes:
        """Share of the passing gradients when backward ends: a matrix's at a time, or all."""
        if not self.layout.memory.optimizer_in_backward:
            return 1.0
        shape = self.shape
        matrix = shape.hidden * max(shape.vocab, shape.ffn.width) / self.layout.mesh.tp
        return smaller(matrix / self.num_trained, 1.0)

    @cached_property
    def frozen_bytes(self) -> Bytes:
        """Return bytes of what is not trained: blocks as they are stored, the ends as they are."""
        layout, states = self.layout, self.states
        blocks = self.num_parameters - self.end_parameters
        width = FROZEN[layout.lora.quantize] if layout.lora.quantize != "none" else states.frozen
        return width * blocks + states.frozen_ends * self.end_parameters

    @cached_property
    def narrowed_head(self) -> Bytes:
        """Autocast's narrow copy of a frozen fp32 head, which its product's backward waits for."""
        if self.states.frozen_ends <= self.states.frozen:
            return 0.0
        matrix = self.shape.vocab * self.shape.hidden / self.layout.mesh.tp
        return self.has_loss * self.numerics.formats.compute * matrix

    def sharded(self, stage: int) -> Bytes:
        """Ranks that share what ZeRO ``stage`` shards."""
        return self._sharded[stage - 1]

    def owned(self, stage: int) -> Bytes:
        """Trained parameters of one rank where ZeRO ``stage`` shards them.

        Fewer ranks have the same experts than have the rest: they share each among fewer.
        """
        return self._owned[stage - 1]

    @cached_property
    def _owned(self) -> tuple[Bytes, ...]:
        if not self.shape.moe.num_experts or self.layout.lora.rank:
            return tuple(self.num_trained / ranks for ranks in self._sharded)
        experts = self.layout.pipeline.stage_copies * self.blocks[0] * self.expert_parameters
        others, ranks_of_an_expert = (
            self.num_trained - experts,
            self.layout.mesh.tp / self._expert_ranks,
        )
        return tuple(
            others / ranks + experts / larger(ranks * ranks_of_an_expert, 1.0)
            for ranks in self._sharded
        )

    @cached_property
    def _sharded(self) -> tuple[Bytes, ...]:
        zero = self.layout.sharding.zero
        if not is_any(zero > 0):
            return 1, 1, 1
        shards = (
            self.layout.shards * self.layout.pipeline.stage_copies
        )  # two ranks hold each of DualPipe's
        return tuple(choose(zero >= s, shards, 1) if is_any(zero >= s) else 1 for s in (1, 2, 3))

    @cached_property
    def weights(self) -> Bytes:
        """Return bytes of a rank's weights: FSDP's are sharded as soon as gradients are.

        Gathered ones are buffers; offloaded ones of FSDP are on the host with their optimizer
        (torch's `CPUOffloadPolicy`), on one GPU as on many.
        """
        is_fsdp = self.layout.scheme == "fsdp"
        level = 2 if is_fsdp else 3
        weights = self.states.weight * self.owned(level)
        if self.layout.lora.rank:
            weights = weights + self.frozen_bytes / self.sharded(level)
        if self.states.eight_bits:
            blocks = self.num_parameters - self.end_parameters
            weights = weights + self.states.eight_bits * blocks / self.sharded(level)
        if is_fsdp and self.layout.memory.offload != "none":
            return choose(self.layout.sharding.zero >= 2, 0.0, weights)
        return weights

    @cached_property
    def num_gradients(self) -> Bytes:
        """Gradients on one rank.

        Those that ZeRO shards follow an offloaded optimizer to the host, bucket by bucket or block
        by block, and need no second GPU for it (Ren et al. 2021).
        """
        layout = self.layout
        away = choose(layout.sharding.zero >= 2, 0, self.num_trained)
        owned = self.owned(2) if layout.memory.offload == "none" else away
        if layout.scheme != "fsdp" or layout.traits.models.own_models:
            return owned
        # torch's schedules add up a stage's until the last of its backward passes.  Where a round
        # has all micro-batches, one group of layers after another is done: two are whole, one of
        # them sent.
        in_turn = smaller(2.0 / layout.pipeline.interleave, 1.0)
        whole = choose(layout.batch.grad_accum <= layout.mesh.pp, in_turn, 1.0) * self.num_trained
        return choose(layout.mesh.pp > 1, larger(whole, owned), owned)

    @cached_property
    def masters(self) -> tuple[Bytes, Bytes]:
        """Return bytes of what the optimizer keeps on one rank: masters of weights, and moments."""
        if self.layout.memory.offload != "none":
            return 0.0, 0.0
        return self.states.master * self.owned(1), self.states.moments * self.owned(1)

    @cached_property
    def moving(self) -> Bytes:
        """Return bytes of all buffers while forward or backward runs.

        Weights come, gradients leave.
        """
        return self.buffers + self.gathered + overheads.buckets(self.layout, self.states)

    @cached_property
    def buffers(self) -> Bytes:
        """Buffers that stay allocated from step to step."""
        layout = self.layout
        many = layout.mesh.gpus > layout.mesh.tp * layout.mesh.pp
        size: Any = 0.0
        if layout.scheme == "ddp":
            grad = self.states.persistent_grad + self.states.transient_grad
            size = choose(many & (layout.sharding.zero == 0), grad * self.num_trained, 0.0)
        if layout.traits.models.splits_vocabulary:
            shared = (layout.mesh.sequence_parallel > 0) & (layout.mesh.tp > 1)
            wide = 2 * layout.part_of_sequence * self.shape.hidden
            size = size + shared * wide * layout.batch.micro
        return size

    @cached_property
    def gathered(self) -> Bytes:
        """Weights that ranks gather to compute with, and whole gradients of one block.

        They are shards again when backward has ended.  FSDP gathers what is trained and what is
        frozen; on one GPU, too, where shards are offloaded: whole weights of two blocks and of the
        ends, whole gradients of one block.  DeepSpeed keeps more, while few were gathered since.
        """
        layout, zero = self.layout, self.layout.sharding.zero
        many = layout.mesh.gpus > layout.mesh.tp * layout.mesh.pp
        gathers = many | (layout.scheme == "fsdp" and layout.memory.offload != "none")
        grad = self.states.persistent_grad + self.states.transient_grad
        compute = self.numerics.formats.compute
        size: Any = 0.0
        if is_any(zero >= 3):
            block = self.block_parameters(decoder=self.shape.num_decoder_layers > 0)
            # What is quantised travels, and lies there, as it is stored.
            width = FROZEN[layout.lora.quantize] if layout.lora.quantize != "none" else compute
            weights = 2 * width * block + compute * self.end_parameters
            if layout.traits.ranks.live:
                live = smaller(layout.traits.ranks.live, self.num_parameters)
                weights = larger(weights, width * live)
            weights = weights + (0.0 if layout.lora.rank else grad) * block
            size = size + choose(gathers & (zero >= 3), weights, 0.0)
        if layout.traits.ranks.grad_buffer and is_any(zero == 2):  # a block's gradients
            block = self.block_parameters(decoder=self.shape.num_decoder_layers > 0)
            size = size + choose(gathers & (zero == 2), grad * block, 0.0)
        if layout.scheme == "fsdp" and is_any(zero == 2):
            frozen = self.num_parameters if layout.lora.rank else 0
            num_gathered = self.num_trained + frozen
            size = choose(gathers & (zero == 2), compute * num_gathered, size)
        return size

    # --- activations -----------------------------------------------------------------------

    @cached_property
    def policy(self) -> str:
        """Policy of the tensors that are kept."""
        if self.layout.memory.recompute == "selective":
            return selective_policy(self.shape, self.layout)
        return FULL if self.layout.memory.recompute == "full" else NONE

    @cached_property
    def _seqs(self) -> tuple[int, int]:
        """Return tokens read and tokens written of a sample."""
        read = self.layout.part_of_sequence
        return read, self.layout.batch.written if self.shape.family == "t5" else read

    @cached_property
    def _lists(self) -> tuple[list[SavedTensor], list[SavedTensor]]:
        read, written = self._seqs
        plain = saved_tensors(self.shape, self.numerics, read)
        if self.shape.family != "t5":
            return plain, []
        return plain, saved_tensors(self.shape, self.numerics, written, decoder=True, read=read)

    @cached_property
    def _sequence_shares(self) -> Bytes:
        split = self.layout.mesh.sequence_parallel > 0
        return choose(split, self.layout.mesh.tp, 1)

    def _bytes(self, items: list[SavedTensor], policy: str) -> Bytes:
        """Return one micro-batch of one block on one rank."""
        share = total(items, policy, split=True) / self.layout.mesh.tp
        unsplit = total(items, policy, split=False) / self._sequence_shares
        return (share + unsplit) * self.layout.batch.micro

    @cached_property
    def _saved(self) -> tuple[Bytes, Bytes]:
        """Saved bytes of a plain block and of one with cross-attention, by the policy."""
        plain, crossed = (self._bytes(items, self.policy) if items else 0 for items in self._lists)
        return plain, crossed

    @cached_property
    def _whole(self) -> tuple[Bytes, Bytes]:
        """Saved bytes of one block and micro-batch where every tensor is kept."""
        if self.policy == NONE:
            return self._saved
        plain, crossed = (self._bytes(items, NONE) if items else 0 for items in self._lists)
        return plain, crossed

    @cached_property
    def of_one(self) -> tuple[Bytes, Bytes]:
        """Return bytes that one micro-batch keeps.

        Of plain blocks, and of those with cross-attention.
        """
        plain, crossed = (n * saved for n, saved in zip(self.blocks, self._saved, strict=True))
        return plain, crossed

    @cached_property
    def waiting(self) -> Bytes:
        """Activations of all micro-batches that are under way, of the blocks."""
        plain, crossed = self.of_one
        all_blocks = (plain + crossed) * self.in_flight
        if self.layout.memory.offload_checkpoints:
            return smaller(all_blocks, 2 * larger(*self._saved))
        return all_blocks

    @cached_property
    def offloaded_checkpoints(self) -> Bytes:
        """Bytes of blocks' inputs that wait in the host's memory, but for two on their way."""
        if not self.layout.memory.offload_checkpoints:
            return 0.0
        plain, crossed = self.of_one
        return (plain + crossed) * self.in_flight - self.waiting

    @cached_property
    def in_flight(self) -> Bytes:
        """Micro-batches whose activations this stage holds; a fraction with interleaved groups."""
        p, v, all_of_them = (
            self.layout.mesh.pp,
            self.layout.pipeline.interleave,
            self.layout.batch.grad_accum,
        )
        many = choose(p > 1, all_of_them, 1)
        if self.layout.pipeline.schedule == "gpipe":
            return many
        if self.layout.pipeline.schedule == "dualpipe":
            return smaller(p + 1, many)
        if self.layout.pipeline.schedule == "zbv":
            return smaller(p, many)
        if self.layout.pipeline.schedule == "zb":  # later stages keep what weights' gradients need
            return smaller(choose(v > 1, p + (p - 1) / v, p), many)
        if self.last:
            return smaller(1 + p * (v - 1) / v, many)
        after = 1 if self.inner else 0
        ahead = p - after + choose(v > 1, (p - 1 - after) / v, 0)
        return smaller(larger(ahead, 1), many)

    @cached_property
    def early(self) -> Bytes:
        """Return bytes that the embedding keeps, for all micro-batches under way."""
        read, written = self._seqs
        size = overheads.embedding_bytes(self.shape, self.numerics, read)
        if self.shape.family == "t5":
            size += overheads.embedding_bytes(self.shape, self.numerics, written)
        size = size * self.layout.batch.micro / self._sequence_shares
        return self.has_embedding * size * self.in_flight

    @cached_property
    def late(self) -> Bytes:
        """Return bytes between the last block and the loss.

        T5 has another end after its encoder.
        """
        read, written = self._seqs
        size = overheads.end_bytes(self.shape, self.numerics, written)
        if self.shape.family == "t5":
            size += overheads.end_bytes(self.shape, self.numerics, read)
        return self.has_loss * size * self.layout.batch.micro / self._sequence_shares

    @cached_property
    def rows(self) -> Bytes:
        """Return tokens that logits are computed for."""
        return self.head * self._seqs[1] * self.layout.batch.micro

    @cached_property
    def collected(self) -> Bytes:
        """Logits of all GPUs, beside its own, on GPU 0 of torch.nn.DataParallel.

        They are collected into a tensor of their own; Hugging Face's models return them.
        """
        layout = self.layout
        if layout.scheme != "dataparallel" or layout.traits.models.own_models:
            return 0.0
        return layout.mesh.dp * self.rows * self.shape.vocab * self.numerics.formats.compute

    # --- the backward pass of one block ----------------------------------------------------

    def in_block(self, *, decoder: bool = False) -> Bytes:
        """Recomputed tensors, and gradients on their way, in one block."""
        passing = self._gradients[decoder]
        again = self.policy != NONE
        return self._whole[decoder] - self._saved[decoder] + passing if again else passing

    def in_first_block(self) -> Bytes:
        """Return bytes in the block that backward ends with, and what it saved."""
        return self._whole[0] + self._gradients[0]

    @cached_property
    def _gradients(self) -> tuple[Bytes, Bytes]:
        """Return bytes of gradients of a plain block, and of one with cross-attention."""
        read, written = self._seqs
        plain = self._gradients_of(read)
        return plain, plain if written == read else self._gradients_of(written)

    def _gradients_of(self, seq: int) -> Bytes:
        """Return the residual's gradient, and inside the branch that needs most."""
        layout, shape = self.layout, self.shape
        outside = self.numerics.formats.residual * seq * shape.hidden / self._sequence_shares
        size = layout.batch.micro * (
            (self._inside(seq) + self._gathered) / layout.mesh.tp + outside
        )
        matrix = shape.hidden * shape.ffn.width / layout.mesh.tp
        if shape.moe.num_experts:
            matrix = expert_parameters(shape) / self._expert_ranks
            matrix = matrix / (3 if shape.ffn.gated else 2)
        if layout.lora.rank:  # one matrix at a time is widened
            return size + self.numerics.formats.compute * matrix * (layout.lora.quantize != "none")
        if layout.traits.ranks.grad_buffer:  # in fp32, before it is added to the buffer
            return size + 4 * (2 if shape.ffn.gated else 1) * matrix
        return size + choose(self.grads_add_up, 0, self.states.transient_grad * matrix)

    @property
    def _gathered(self) -> float:
        """Return bytes of one sample.

        Keys and values of all ranks that share it, and their gradients.
        """
        layout, shape = self.layout, self.shape
        if layout.mesh.cp == 1 or layout.context != "all-gather":
            return 0.0
        return (
            4.0
            * self.numerics.formats.compute
            * layout.batch.seq_len
            * shape.attention.num_kv_heads
            * shape.attention.head_dim
        )

    def _inside(self, seq: int) -> float:
        """Return bytes of one sample: the activation's gradients, or those of the scores."""
        shape, c = self.shape, self.numerics.formats.compute
        inside = c * seq * shape.width_per_token * (2 if shape.ffn.gated else 1)
        scores = shape.attention.num_heads * seq * seq * (1 + shape.attention.memory_segments)
        if not self.numerics.kernels.flash:
            freed = c * seq * shape.width_per_token * (3 if shape.ffn.gated else 2)
            return max(
                inside, scores * (8 - c if self.numerics.formats.softmax == 4 else 2 * c) - freed
            )
        if shape.positions == "relative":  # a bias for each score has a gradient
            return max(inside, c * scores)
        return inside

    @cached_property
    def embedding_gradient(self) -> Bytes:
        """A tied matrix's second gradient, whole as it comes, before it is added to the head's."""
        layout = self.layout
        if not self.shape.head.tied or layout.lora.rank or layout.traits.models.own_models:
            return 0.0
        width = self.states.transient_grad + self.states.persistent_grad
        return self._alone * width * self.shape.vocab * self.shape.hidden / layout.mesh.tp

    @cached_property
    def grads_add_up(self) -> Any:
        """Return whether gradients of earlier micro-batches are there during this one."""
        return self.states.grads_add_up & (self.layout.batch.grad_accum > 1)


def stage_of(shape: ModelShape, layout: Layout, place: str, head: float = 1.0) -> Stage:
    """Return the pipeline stage of a layout at a ``place``, one of STAGES."""
    return (_known_stage if layout.is_one else _stage_of)(shape, layout, place, head)


def _stage_of(shape: ModelShape, layout: Layout, place: str, head: float) -> Stage:
    numerics = numerics_of(shape, layout)
    return Stage(
        shape=shape,
        layout=layout,
        last=place == "last",
        inner=place == "inner",
        head=head,
        numerics=numerics,
        states=states_of(layout, numerics),
    )


_known_stage = lru_cache(maxsize=64)(_stage_of)
"""One layout's: memory, exchanges and the optimizer ask for the same stages."""

STAGES = ("first", "inner", "last")
"""Places of pipeline stages; inner is the one behind the first, with most micro-batches."""


def places(shape: ModelShape, layout: Layout) -> tuple[str, ...]:
    """Return the stages that may need most: inner ones where the ends have fewer layers."""
    pp = layout.mesh.pp
    if not is_any(pp > 1):
        return ("last",)
    lacking = longest_stage(shape, pp) * pp - shape.num_layers - shape.num_decoder_layers
    if layout.pipeline.v_schedule:
        return ("inner", "last") if is_any((pp > 1) & (lacking > 0)) else ("last",)
    return STAGES if is_any((pp > 2) & (lacking > 1)) else ("first", "last")
