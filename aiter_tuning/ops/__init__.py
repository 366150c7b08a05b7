"""Operators that look up their tuned config by themselves."""
