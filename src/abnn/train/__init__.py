"""fit(), loss(), the training loop, checkpoints, data on the device."""
