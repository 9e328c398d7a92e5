"""Our models against Hugging Face's: logits, gradients, weights in both directions, loss."""

from __future__ import annotations

from typing import Any

import pytest

from models_peers import SMALL, Peers, padding, peers, shape_of, their_model, tokens
from trainrig import models, workload
from trainrig.errors import DataError
from trainrig.models import hf_weights

torch = pytest.importorskip("torch", reason="needs torch")
transformers = pytest.importorskip("transformers", reason="needs transformers")


def assert_close(ours: Any, theirs: Any, allowed: float = 3e-5) -> None:
    """Within fp32 rounding through a few layers, as a share of how far the values spread."""
    off, spread = float((ours - theirs).abs().max().detach()), float(theirs.std().detach())
    assert spread > 0.1  # else anything would be close
    assert off < allowed * spread, (off, spread)


def both_logits(pair: Peers, *, masked: bool = False) -> tuple[Any, Any]:
    """Ours and theirs for the same tokens, at the places that are no padding."""
    read, mask = tokens(), padding() if masked else None
    given = {} if mask is None else {"attention_mask": mask.long()}
    if pair.shape.family == "t5":
        written = tokens(num_tokens=17, seed=1)
        ours = pair.ours(read, written, mask)
        return ours, pair.theirs(input_ids=read, decoder_input_ids=written, **given).logits
    ours = pair.ours(read) if mask is None else pair.ours(read, mask)
    theirs = pair.theirs(input_ids=read, **given).logits
    return (ours, theirs) if mask is None else (ours[mask], theirs[mask])


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("attention", ["auto", "sdpa", "plain"])
def test_logits_are_theirs(name: str, attention: str) -> None:
    ours, theirs = both_logits(peers(name, attention=attention))
    assert_close(ours, theirs)


@pytest.mark.parametrize("name", ["bert", "bert-relu", "t5", "t5-gated"])
@pytest.mark.parametrize("attention", ["auto", "sdpa", "plain"])
def test_logits_are_theirs_behind_a_mask(name: str, attention: str) -> None:
    pair = peers(name, attention=attention)
    ours, theirs = both_logits(pair, masked=True)
    assert_close(ours, theirs)
    unmasked, _ = both_logits(pair)
    assert (ours.flatten() - unmasked.flatten()[: ours.numel()]).abs().max() > 0.01


def test_segments_of_bert_are_theirs() -> None:
    pair, read = peers("bert"), tokens()
    segments = (torch.arange(read.shape[1]) >= 9).long().expand_as(read)
    theirs = pair.theirs(input_ids=read, token_type_ids=segments).logits
    assert_close(pair.ours(read, None, segments), theirs)


def losses(pair: Peers) -> tuple[Any, Any]:
    """Ours and theirs for the same targets; a causal target is the next token."""
    read = tokens(num_tokens=25)
    if pair.shape.family == "bert":
        targets = read.masked_fill(torch.rand(read.shape, generator=seeded(3)) > 0.3, -100)
        mask = padding(num_tokens=25)
        theirs = pair.theirs(input_ids=read, labels=targets, attention_mask=mask.long()).loss
        return pair.ours.loss(read, targets, mask), theirs
    if pair.shape.family == "t5":
        targets = tokens(num_tokens=17, seed=1)
        targets[0, 11:] = -100
        theirs = pair.theirs(input_ids=read, labels=targets).loss
        return pair.ours.loss(read, targets), theirs
    return pair.ours.loss(read[:, :-1], read[:, 1:]), pair.theirs(input_ids=read, labels=read).loss


def seeded(seed: int) -> Any:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("name", SMALL)
def test_loss_and_gradients_are_theirs(name: str) -> None:
    pair = peers(name)
    ours, theirs = losses(pair)
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
    ours.backward()
    theirs.backward()
    gradients = {name: p.grad for name, p in pair.theirs.named_parameters()}
    expected = hf_weights.from_hugging_face(pair.shape, gradients)
    largest = max(float(gradient.abs().max()) for gradient in expected.values())
    for weight, parameter in pair.ours.named_parameters():
        # A bias of the keys moves all scores of a query alike: its gradient is 0 but for rounding.
        scale = float(expected[weight].abs().max()) + 1e-3 * largest
        assert float((parameter.grad - expected[weight]).abs().max()) < 1e-4 * scale, weight


@pytest.mark.parametrize("name", SMALL)
def test_weights_go_back_bit_for_bit(name: str) -> None:
    theirs, shape = their_model(name), shape_of(name)
    ours = hf_weights.from_hugging_face(shape, theirs.state_dict())
    back = hf_weights.to_hugging_face(shape, ours)
    assert back.keys() == theirs.state_dict().keys()
    for weight, tensor in theirs.state_dict().items():
        assert torch.equal(back[weight], tensor), weight
    theirs.load_state_dict(back, strict=True)


@pytest.mark.parametrize("name", SMALL)
def test_fresh_weights_of_ours_work_in_theirs(name: str) -> None:
    theirs, shape = their_model(name), shape_of(name)
    ours = models.build(shape, seed=5).eval()
    theirs.load_state_dict(hf_weights.to_hugging_face(shape, ours.state_dict()), strict=True)
    mine, other = both_logits(Peers(shape=shape, theirs=theirs, ours=ours))
    assert_close(mine, other)


@pytest.mark.parametrize("name", SMALL)
def test_fresh_weights_are_spread_as_theirs(name: str) -> None:
    """Per weight: the same standard deviation, constants the same constants."""
    _, model, _ = SMALL[name]
    shape = shape_of(name)
    wide = getattr(transformers, model)._from_config(their_model(name).config)
    theirs = hf_weights.from_hugging_face(shape, wide.state_dict())
    for weight, mine in models.build(shape).state_dict().items():
        first = 1 if weight == "tokens.weight" else 0  # BERT's padding row is 0
        tensor, other = mine[first:], theirs[weight][first:]
        chance = 5.0 / tensor.numel() ** 0.5
        off = float(tensor.mean()) - float(other.mean())
        assert abs(off) < 2 * chance * spread(other), weight
        assert spread(tensor) == pytest.approx(spread(other), rel=chance), weight


def spread(tensor: Any) -> float:
    return float(tensor.std(correction=0)) + 1e-12


NAMED = {
    "gpt2": ("GPT2Config", "GPT2LMHeadModel"),
    "gpt-neo": ("GPTNeoConfig", "GPTNeoForCausalLM"),
    "bert": ("BertConfig", "BertForMaskedLM"),
    "t5": ("T5Config", "T5ForConditionalGeneration"),
    "llama": ("LlamaConfig", "LlamaForCausalLM"),
}


def config_numbers(shape: workload.ModelShape) -> dict[str, Any]:
    """The numbers of a named shape in the words of Hugging Face's configurations."""
    common = {"vocab_size": shape.vocab, "tie_word_embeddings": shape.head.tied}
    if shape.family == "gpt2":
        return common | {
            "n_embd": shape.hidden,
            "n_layer": shape.num_layers,
            "n_head": shape.attention.num_heads,
            "n_positions": shape.position.max_positions,
        }
    if shape.family == "t5":
        return common | {
            "d_model": shape.hidden,
            "d_ff": shape.ffn.width,
            "d_kv": shape.attention.head_dim,
            "num_layers": shape.num_layers,
            "num_heads": shape.attention.num_heads,
        }
    heads = {
        "hidden_size": shape.hidden,
        "num_attention_heads": shape.attention.num_heads,
        "num_hidden_layers": shape.num_layers,
        "intermediate_size": shape.ffn.width,
        "max_position_embeddings": shape.position.max_positions,
    }
    if shape.family == "llama":
        heads["num_key_value_heads"] = shape.attention.num_kv_heads
    return common | heads


@pytest.mark.parametrize(
    "name", [name for name in workload.NAMED if not workload.named(name).moe.num_experts]
)
def test_the_formula_counts_the_parameters_of_both(name: str) -> None:
    shape = workload.named(name)
    counted = workload.parameters(shape).total
    assert counted == num_parameters(models.build(shape, device="meta"))
    config, model = NAMED[shape.family]
    with torch.device("meta"):
        theirs = getattr(transformers, model)(
            getattr(transformers, config)(**config_numbers(shape))
        )
    assert counted == num_parameters(theirs)


@pytest.mark.parametrize("name", SMALL)
def test_the_formula_counts_every_variant(name: str) -> None:
    shape = shape_of(name)
    counted = workload.parameters(shape).total
    assert counted == num_parameters(their_model(name))
    assert counted == num_parameters(models.build(shape, device="meta"))


def num_parameters(model: Any) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("name", ["gpt2", "bert", "t5", "llama", "gpt-neo"])
def test_weights_that_do_not_fit_are_refused(name: str) -> None:
    theirs, shape = their_model(name).state_dict(), shape_of(name)
    last = next(key for key in reversed(theirs) if "norm" in key.lower() or "ln" in key)
    with pytest.raises(DataError, match="have no"):
        hf_weights.from_hugging_face(shape, {k: v for k, v in theirs.items() if k != last})
    with pytest.raises(DataError, match=r"nothing here takes the weight 'transformer\.extra'"):
        hf_weights.from_hugging_face(shape, theirs | {"transformer.extra": torch.zeros(3)})
    first = next(key for key in theirs if "weight" in key)
    with pytest.raises(DataError, match="the shape asks for"):
        hf_weights.from_hugging_face(shape, theirs | {first: torch.zeros(5, shape.hidden)})


def test_a_file_without_the_head_is_read_too() -> None:
    """The published GPT-2 files name their weights without the first word, and hold masks."""
    theirs, shape = their_model("gpt2").state_dict(), shape_of("gpt2")
    bare = {
        name.removeprefix("transformer."): tensor
        for name, tensor in theirs.items()
        if name != "lm_head.weight"
    }
    bare["h.0.attn.bias"] = torch.ones(1, 1, 64, 64)
    read = hf_weights.from_hugging_face(shape, bare)
    whole = hf_weights.from_hugging_face(shape, theirs)
    assert all(torch.equal(read[name], whole[name]) for name in whole)
