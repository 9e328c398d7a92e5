"""What vendors claim: chips, host parts, and what others measured on them.

`load` reads the chips' data files, `find` leads from a name or PCI id to a
chip, `chip` defines the fields and the peaks, `host` states claims of CPUs,
memory and PCIe, `published` holds measured baselines.
"""
