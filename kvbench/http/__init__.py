"""A small HTTP/1.1 server and client over asyncio, for the processes that kvbench runs."""
