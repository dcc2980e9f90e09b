"""Jobs become proved dumps: the queue side of a GPU node."""
