"""What a pod does with a request: continuous batching over a paged prefix cache, and its time."""
