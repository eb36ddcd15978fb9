"""What measurement decides: how fast this machine is (`calibrate`), and how a call is carried out (`session`, `lookup`)."""
