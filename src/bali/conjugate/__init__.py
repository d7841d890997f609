"""One Bayesian linear regression, in closed form: moments of rows, their posterior, samples and evidence.

Knows matrices, and how to factor them safely. Does not know networks, layers, data sets or likelihoods.
"""
