"""Modules by which a check sees when and how forwards run.  They travel into the worker."""

import threading
import time

import torch
from torch import nn

TICK = 0.01
PATIENCE = 150  # ticks, not seconds: on a busy machine ticks get longer for everybody


class Meeting:
    """Forwards that meet here can only all be present if they run at the same time.

    They leave one after another, the last replica first: so the first one is always the slowest.
    Of all ``replicas`` the first ones are ``expected``, those that have a chunk.
    """

    patience = PATIENCE  # of all meetings: after one that failed, the next ones do not wait as long

    def __init__(self, replicas, expected):
        self.expected = expected
        self.condition = threading.Condition()
        self.present = 0
        self.most_present = 0
        self.calls = [0] * replicas
        self.finished = [0] * replicas

    def attend(self, replica):
        with self.condition:
            self.calls[replica] += 1
            self.present += 1
            self.most_present = max(self.most_present, self.present)
            self.condition.notify_all()
            all_met = self._wait_for(lambda: self.most_present == self.expected)
            if all_met and replica + 1 < self.expected:
                self._wait_for(lambda: self.finished[replica + 1])
        if all_met:
            time.sleep(2 * TICK)  # for the outputs of threads that finished earlier
        with self.condition:
            self.present -= 1
            self.finished[replica] += 1
            self.condition.notify_all()

    def _wait_for(self, condition):
        for _ in range(self.patience):
            if condition():
                return True
            self.condition.wait(TICK)
        Meeting.patience = 10
        return bool(condition())


class Scale(nn.Module):
    """Multiplies by its factor, after it has attended the meeting."""

    def __init__(self, number, factor, meeting=None):
        super().__init__()
        self.number = number
        self.factor = nn.Parameter(torch.tensor(factor, dtype=torch.float64))
        self.meeting = meeting

    def forward(self, rows):
        if self.meeting is not None:
            self.meeting.attend(self.number)
        return rows * self.factor


class RowTooLong(Exception):
    """An error of the model's own."""


ERRORS = (ValueError, RowTooLong, RuntimeError)


class Fails(nn.Module):
    """Raises an error of its kind, in whose text there is no number."""

    def __init__(self, number):
        super().__init__()
        self.kind = kind_of_error(number)

    def forward(self, rows):
        raise self.kind("a row is too long")


def kind_of_error(number):
    """What replica ``number`` raises: who catches one kind only gets caught."""
    return ERRORS[number % len(ERRORS)]
