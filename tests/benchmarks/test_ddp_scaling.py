"""How much of two independent processes' throughput DDP keeps on two ranks.

Run with `make bench`. Ratios are printed; nothing is asserted about times.
"""
