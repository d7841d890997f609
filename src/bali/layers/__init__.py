"""A module as rows times a weight matrix: linear, convolution, embedding, attention, recurrence, stacks, adapters.

Knows what each kind of layer multiplies by its weights, and how they are read and set. Does not know what is inferred of
them.
"""
