"""The launcher, the `dtrain` command line: it starts, watches and stops processes of the package `dtrain`."""
