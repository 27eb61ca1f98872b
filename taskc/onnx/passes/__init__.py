"""Rewrites of graphs: each is one file with one public function, Graph -> Graph. `pipeline.py` runs them."""
