"""A replica that reduces with the others of its host in memory that all of them map, without servers."""
