"""Models of other libraries, trained by dtrain's strategies."""
