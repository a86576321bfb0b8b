"""KV events as pods publish them over ZeroMQ: where they come from, and hearing them."""
