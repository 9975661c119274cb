"""Ranks that wait for each other: what all of them were doing, in the words of this chapter."""


def in_own_words(refused, function):
    """The refusal of a run, with a better explanation where all ranks do the same."""
    return refused
