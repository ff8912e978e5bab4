"""The parts of a task's report on itself: its usage, its certificate's life, its lines without a launcher."""
