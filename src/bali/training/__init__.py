"""Data in, a fitted posterior out: steps in phases, held-out rows, candidates, calibration, averaged means.

Knows rows as tensors and how to judge what was learnt of them. Does not know tables or scikit-learn, nor the rules that
set its plan.
"""
