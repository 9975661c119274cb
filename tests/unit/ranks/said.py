"""What a message says, whatever its words."""

import re


def numbers_in(text):
    """The numbers in order: ranks, counts, lines, `1st` too; not the 32 of float32."""
    return [int(number) for number in re.findall(r"\b\d+", text)]
