"""What was measured: lock results, strength, accuracy, speed; and the machine-written records of it."""
