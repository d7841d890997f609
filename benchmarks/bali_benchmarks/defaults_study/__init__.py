"""What it costs when a hyperparameter is a factor of three off: for BALI's defaults, and for other methods."""
