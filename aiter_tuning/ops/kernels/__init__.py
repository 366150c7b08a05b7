"""How operators compute under a config, one module each; imported where it is done, never by a run's parent."""
