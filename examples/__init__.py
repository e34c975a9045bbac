"""Applications of Homunculus to real data, each a package with its data, its training and its demo."""
