"""One optimizer step of the Trainer, of a loop written by hand, of Accelerate and of Fabric.

Run with `make bench`. Ratios to the loop are printed; nothing is asserted about times.
"""
