"""What a process of dtrain is set up with: its assignment, its cluster, its threads, and the line its life
hangs on.
"""
