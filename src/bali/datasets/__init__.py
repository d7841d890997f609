"""Data to learn from."""

from bali.datasets.synthetic import SyntheticData, sinc, sines_trend, two_moons

__all__ = ["SyntheticData", "sinc", "sines_trend", "two_moons"]
