"""Clocks that need a GPU: graphs, events, activity records. Importing this package loads no torch."""
