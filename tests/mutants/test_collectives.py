"""Answers to the exercises of collectives get the verdicts that they must get."""

import re

from .judging import answers_of, enough_answers_of, mutants_of, solution_of

test_an_answer_gets_its_verdict = answers_of("collectives")
test_there_are_enough_answers = enough_answers_of("collectives")


def test_a_chunk_that_was_never_added_tells_how_to_find_the_half(verdict_on):
    """Both mistakes leave the same numbers, so the message says where to look."""
    found = set()
    for answer in (
        "replaces_in_the_first_half",
        "starts_the_second_half_with_its_own_chunk",
    ):
        (mutant,) = [m for m in mutants_of("collectives") if m.name == answer]
        found.add(verdict_on(mutant.exercise, mutant.module(solution_of("collectives"))).message)
    usually = {re.search(r"^usually: (.+)", message, re.MULTILINE)[1] for message in found}
    assert len(usually) == 1
    assert "Is it the sum there? Then the second half begins" in usually.pop()
