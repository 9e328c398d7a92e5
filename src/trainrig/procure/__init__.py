"""What to buy or rent for what is to be trained: parts, prices, and what owning them costs.

    parts         what each kind of part says of itself: length, slots, watts, lanes
    part_catalog  the catalog's parts, read from data files, and a user's own
    price_list    prices that a user keeps, each with date and source
    parts_list    the file of a build: parts, counts, the room that it stands in
    placement     which card goes into which slot, with how many lanes
    rule_book     rules and warnings as data, with their sources
    fit_rules     sockets, slots, lengths, lanes, air
    load_rules    watts, plugs, circuits, heat, RAM, disks
    build_rules   whether a build is legal, with the arithmetic; what people learned the hard way
    build_choices  offers, and what goes with what
    build_search  the best builds under a budget
    assembly      the order of work, and what to measure when
    several_machines  what a budget for a cluster trains
    training_rate  tokens a second, predicted or measured
    ownership     buy, rent or cloud: totals, break-even, sensitivity
    goodput       checkpoints and failures: Young, Daly, and a simulation of them

Nothing here invents a price: without one, it asks.  No torch, no report.
"""
