"""What the default run shows, kept as committed files (``results/published/``), and what of it holds everywhere."""
