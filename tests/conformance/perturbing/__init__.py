"""What TensorFlow computes of other inputs, a module for each kind of golden file: see
`conformance/perturb.py`.
"""
