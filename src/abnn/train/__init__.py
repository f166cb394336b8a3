"""Training: fit(), loss(), the loop, checkpoints, data on the device, learning the score."""
