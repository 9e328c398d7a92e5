"""Tables of training runs that others published: what their rows mean, and how long each takes.

An instrument of validation, and no part of the product, which reads strict cases alone.  `strict`
has the interface: `normalise` turns a published row into a row of `predict --cases`.

columns            which columns a table has, and its rows as they stand in the file
cells              one row's cells: blank, words, numbers and ranges
training_programs  what a named program does where a row does not say otherwise
machines           the machine: chip, link, server, network
shape              the model, by its name, numbers or parameters; vision transformers
row_lengths        tokens of a sequence
row_layout         how the model and the batch are split, and what ranks exchange
row_compute        number format, kernels, graphs and experts
row_memory         what is kept on a GPU, in which format, and whose bytes a row prints
feasible           what must have been otherwise, for a run to have been possible
case               what the row asks, of all these
strict             that as options of predict: a row that the product reads
answers            step time and memory of each row, or why there are none
row_errors         how far off they are where a row says what was measured
"""
