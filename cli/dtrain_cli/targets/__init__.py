"""Where tasks run: processes of this machine."""
