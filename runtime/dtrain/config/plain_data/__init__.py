"""Plain data, as files and options give them: the keys and types of a section, and the words for nothing."""
