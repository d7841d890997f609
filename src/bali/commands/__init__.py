"""The commands of `bali`, one file each."""
