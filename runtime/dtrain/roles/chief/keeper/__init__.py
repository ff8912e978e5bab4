"""What the leader does beside training: saves, gives servers back what they lost, saves the last step."""
