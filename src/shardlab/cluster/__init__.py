"""Many processes as one JAX program: starting them, joining them, and checking a launch."""
