"""One file a group of commands. They import what they need when they run, so that `dtrain --help` stays
quick.
"""
