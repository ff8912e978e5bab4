"""One file a group of commands. They import what they need when they run, so `dtrain --help` stays quick."""
