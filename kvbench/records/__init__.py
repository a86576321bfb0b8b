"""What is left of a run: one row per turn, its folder, and exact statistics over the rows."""
