"""One module for each architecture; ``models.registry`` imports the one that a configuration names."""
