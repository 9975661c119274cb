"""Answers to the exercises of pipeline get the verdicts that they must get."""

from .judging import answers_of, enough_answers_of

test_an_answer_gets_its_verdict = answers_of("pipeline")
test_there_are_enough_answers = enough_answers_of("pipeline")
