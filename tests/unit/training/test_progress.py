"""The progress bar: on rank 0, where somebody looks, and never in the way of the training."""

import io
import sys
import threading

import pytest

from multigpu.training.history import ProgressBar


class Terminal(io.StringIO):
    """A standard error that says it is a terminal."""

    def isatty(self):
        return True


@pytest.fixture
def errors(monkeypatch):
    """``errors(file)`` makes ``file`` the standard error."""

    def replace(file):
        monkeypatch.setattr(sys, "stderr", file)
        return file

    return replace


def train(**options):
    with ProgressBar(4, **options) as bar:
        for _ in range(4):
            bar.figures(loss=0.123456, accuracy=0.5)
            bar.update(1)


def test_a_terminal_sees_the_bar_and_the_latest_figures(errors):
    shown = errors(Terminal())
    train()
    last = shown.getvalue().rpartition("\r")[2]
    assert "4/4" in last
    assert "loss=0.1235, accuracy=0.5" in last


def test_elsewhere_it_is_quiet_unless_asked(errors):
    shown = errors(io.StringIO())
    train()
    assert shown.getvalue() == ""
    train(shown=True)
    assert "4/4" in shown.getvalue()
    assert "\x1b" not in shown.getvalue()  # plain text


def test_other_ranks_show_nothing_even_when_asked(errors):
    shown = errors(Terminal())
    train(shown=True, is_main=False)
    train(shown=False)
    assert shown.getvalue() == ""


def test_a_run_that_goes_on_counts_what_was_done(errors):
    shown = errors(Terminal())
    with ProgressBar(10, initial=7) as bar:
        bar.update(1)
    assert " 7/10" in shown.getvalue().split("\r")[1]
    assert " 8/10" in shown.getvalue().rpartition("\r")[2]


class Breaks(Terminal):
    """A terminal that is closed after the first words."""

    def write(self, text):
        if self.tell():
            raise BrokenPipeError("the reader is gone")
        return super().write(text)


@pytest.mark.parametrize("kind", ["closed", "none", "breaks"])
def test_training_goes_on_when_standard_error_is_gone(errors, kind):
    file = {"closed": Terminal(), "none": None, "breaks": Breaks()}[kind]
    if kind == "closed":
        file.close()
    errors(file)
    train(shown=True)
    train()


def test_standard_error_may_be_closed_while_the_bar_is_shown(errors):
    shown = errors(Terminal())
    with ProgressBar(4) as bar:
        bar.update(1)
        shown.close()
        bar.figures(loss=1.0)
        bar.update(3)


def test_an_error_in_the_training_is_not_hidden(errors):
    errors(Terminal())
    with pytest.raises(ValueError, match="of the model"), ProgressBar(4):
        raise ValueError("of the model")


def test_it_starts_no_thread(errors):
    errors(Terminal())
    before = threading.active_count()
    with ProgressBar(4) as bar:
        bar.update(1)
        assert threading.active_count() == before
