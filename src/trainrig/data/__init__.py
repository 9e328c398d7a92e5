"""What a training is run on: text, its tokens, and batches of them.

    prepare    text → trained tokenizer, Megatron's .bin/.idx, a held-out part, a manifest
    manifest   what a prepared folder holds; opened by the programs that train
    indexed    .bin/.idx, written and read
    batches    a step's number → the samples of one rank: causal, masked (BERT), spans (T5)
    objective  a prepared folder → batches, for causal, masked or spans
    loader     batches made ahead of time, in a thread

Training programs import objective, batches and loader; these need numpy and
nothing else.  The tokenizers library is loaded by prepare alone.
"""
