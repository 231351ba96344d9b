"""What only pages of the book use: the explorer's calculators, the planner, comparison of specs,
and a server.
"""
