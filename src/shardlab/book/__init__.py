"""What only pages of the book use: the explorer's calculators, the planner, and the comparison of specs."""
