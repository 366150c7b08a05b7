"""A page of pictures about a tuned table: one HTML file that needs nothing else."""
