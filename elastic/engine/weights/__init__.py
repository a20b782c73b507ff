"""A folder of safetensors as a new policy version."""
