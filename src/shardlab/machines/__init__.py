"""What programs run on and what they train: chips, machines and models by their published sizes."""
