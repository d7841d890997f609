"""Ten networks on real data, by `bali.fit` with nothing set and by Adam with its best rate."""
