"""Convolutional networks on images: BALI beside other methods on the same network."""
