"""How near two numbers have to be, by why they may differ at all. All are relative, with the same number as absolute one."""

from __future__ import annotations

#: The same operations on the same numbers: bit for bit.
BITS = 0.0
#: The same float64 operations, summed in another order.
ROUNDING = 1e-12
#: Two float64 formulas for one number.
EXACT = 1e-10
#: Two float64 formulas, after some steps that carried their differences on.
STEPS = 1e-8
#: The same after many steps, or through matrices that lose digits.
MANY_STEPS = 1e-6
#: Rows in float32 and algebra in float64, after one step.
FLOAT32 = 1e-5
#: Float32, where rounding was carried on from step to step.
FLOAT32_STEPS = 1e-3

#: Monte Carlo: how far a sample mean may lie from the truth, in its own standard error.
STANDARD_ERRORS = 5.0
#: Kolmogorov–Smirnov, for fixed seeds.
SMALLEST_P_VALUE = 1e-3
