"""Types, nodes and mappings: what every stage of a program is made of."""
