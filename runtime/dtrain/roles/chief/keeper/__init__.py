"""The leader's work beside training: saving, giving servers back what they lost, saving the last step."""
