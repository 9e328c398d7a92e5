"""Whether a training fits in memory, in which of three ways, and what to change where it does not.

methods          full, LoRA and QLoRA: the word for each, tokens/s, and how far it goes
memory_options   what each change of a layout saves, and the changes that make it fit

One layout at a time: nothing here needs numpy.
"""
