"""What a person sees of a run: progress while it goes on, a summary when it ends."""
