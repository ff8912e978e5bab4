"""`dtrain tune`: each trial of a study is a launch of its own."""
