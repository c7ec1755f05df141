"""One build in its child: from a checkpoint to a published version."""
