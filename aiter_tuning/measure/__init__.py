"""Inside a worker: inputs, the call, the comparison, the clock. Importing this package loads no torch."""
