"""What only pages of the book use: the explorer's calculators and the comparison of specs."""
