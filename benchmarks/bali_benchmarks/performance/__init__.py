"""How fast BALI is, always beside something else measured in the same run: `bali-benchmarks step`, `members` and so on."""
