"""IR to something that runs: one package for each target."""
