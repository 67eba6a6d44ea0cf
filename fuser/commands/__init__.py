"""The commands of `fuserc`, one module each: its help, its options, and what it does."""
