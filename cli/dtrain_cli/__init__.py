"""The launcher: the `dtrain` command line. It starts, watches and stops processes; what they run is the
package `dtrain`.
"""
