"""The paper's Algorithm 1 over the layers of a module: settings, the step, prediction, checkpoints, several processes.

Knows mini-batches, one after the other. Does not know data sets, epochs or validation, nor when training is over.
"""
