"""What every data set of the course hands out: rows to train on and rows to test with."""

from typing import NamedTuple

from torch.utils.data import TensorDataset


class Split(NamedTuple):
    """Rows to train on, and rows the model has never seen."""

    train: TensorDataset
    test: TensorDataset
