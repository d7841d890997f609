"""Counts, durations and noise by row: `BALIRegressor` beside the models that are usual for them."""
