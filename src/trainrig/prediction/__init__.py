"""Numbers without running: what is claimed for a case, what to expect of it, what a step costs.

No torch.

    expected     what vendors claim for a case, and what to expect of it here
    rates        how fast operations go, from claims or from this machine's records
    step         the time of a training step by part
    search       all layouts, and the best of them; memory options, upgrades, how many GPUs
    scenario     what is to be predicted: model, layout, machines
    prediction   what a predicted step means: tokens a day, MFU, days, energy
    cases        a table of questions: its columns are the options
"""
