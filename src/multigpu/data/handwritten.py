"""Handwritten digits: real images, so small that every step of the course runs in milliseconds.

The 1,797 images of 8 x 8 grey values come with scikit-learn; nothing is downloaded. They are the
test part of "Optical Recognition of Handwritten Digits" (E. Alpaydin and C. Kaynak, UCI Machine
Learning Repository, 1998).
"""

from importlib.metadata import distribution

import numpy as np
import torch
from torch.utils.data import TensorDataset

from multigpu.data.split import Split

TEST_SIZE = 360  # rows; the other 1,437 are for training
FILE = "sklearn/datasets/data/digits.csv.gz"  # in scikit-learn, which takes a second to import


def digits(seed: int = 0) -> Split:
    """Load the digits and split them at random into 1,437 training and 360 test rows.

    Each row is `(image, label)`: the image float32 of shape (1, 8, 8) with values from 0 to 1, the
    label int64 from 0 to 9. `dataset.tensors` gives all images and all labels at once. They lie on
    the CPU. The same `seed` gives the same split; torch's global random state is left alone.
    """
    table = np.loadtxt(
        str(distribution("scikit-learn").locate_file(FILE)), dtype=np.float32, delimiter=","
    )
    images = torch.from_numpy(table[:, :-1]).reshape(-1, 1, 8, 8) / 16  # (1797, 1, 8, 8)
    labels = torch.from_numpy(table[:, -1]).to(torch.int64)  # (1797,)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    test, train = order[:TEST_SIZE], order[TEST_SIZE:]
    return Split(
        train=TensorDataset(images[train], labels[train]),
        test=TensorDataset(images[test], labels[test]),
    )
