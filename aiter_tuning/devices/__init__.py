"""What there is to measure on: discovery, arch names, visibility, health."""
