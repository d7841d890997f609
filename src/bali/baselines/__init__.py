"""Methods to compare BALI with. Each has `fit(X, y)` and `pred_dist(X)`, like the estimators."""
