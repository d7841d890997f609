"""One thread a test run: the matrices are small, and threads would only wait for each other."""

import torch

torch.set_num_threads(1)
