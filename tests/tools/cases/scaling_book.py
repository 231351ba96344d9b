"""How the Scaling Book gives times."""


def of_many(seconds, n):
    """(n-1)/n becomes 1, which is how the Scaling Book gives times of gathers."""
    return seconds * n / (n - 1)
