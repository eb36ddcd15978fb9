"""When: the order of tiles and chunks on each rank, as pure integers."""
