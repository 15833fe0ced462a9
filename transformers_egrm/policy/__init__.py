"""What saves a judge work: verdicts that were reached before."""
