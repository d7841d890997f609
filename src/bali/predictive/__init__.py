"""What the outputs of a network say about observations: likelihoods, mixtures, metrics, plots.

Knows outputs and targets as tensors. Does not know which network or which method they came from.
"""
