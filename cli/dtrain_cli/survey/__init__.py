"""`dtrain check --hosts`: whether some hosts can run a cluster together."""
