"""The commands of `bali-benchmarks`, one file each."""
