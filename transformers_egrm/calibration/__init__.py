"""What an owner's labels allow: calibrated probabilities, and thresholds with a promise that can be checked."""
