"""The step machine: which parts make a version, who computes them, and what happens when one dies.

It is pure: no socket, thread, clock or chance. Who hosts it differs by strategy, and so does how gradients
are reduced; see docs/design/steps.md.
"""
