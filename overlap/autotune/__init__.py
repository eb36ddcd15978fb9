"""What measurement decides: how fast this machine is (`calibrate`)."""
