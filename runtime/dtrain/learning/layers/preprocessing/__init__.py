"""Layers that prepare data, one in each file.

They have no weights. What `adapt` learns from data (means, a vocabulary) becomes part of the layer's config.
It is saved with the architecture, and is the same in every task that runs the same program: the tasks of one
host learn it once. In the `map` of a dataset they are called with arrays.
"""
