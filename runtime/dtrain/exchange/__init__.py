"""Calls that all members make together, on whatever carries them: pure.

calls     what a call is, how it is written, and the sum of what is given to it
machine   the rule *Calls*: the n-th call of a member meets the n-th of every other
"""
