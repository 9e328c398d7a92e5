"""The data of a training: text, its tokens, and batches of them.

    corpus            files and folders → documents
    tokenizer         documents → a trained byte-pair encoding
    prepare           text → tokenizer, Megatron's .bin/.idx, a held-out part, a manifest
    manifest          what a prepared folder holds; opened by the programs that train
    megatron_indexed  .bin/.idx, written and read
    shuffle           the order of the samples, from a seed
    masking           BERT's masked tokens, T5's spans
    batches           a step's number → the samples of one rank
    open_batches      a prepared folder → batches, for causal, masked or span models
    loader            batches made ahead of time, in a thread

Training programs import open_batches, batches and loader; these need numpy and
nothing else.  The tokenizers library is loaded by prepare alone.
"""
