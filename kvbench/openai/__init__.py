"""The wire of OpenAI's API as typed values, and the event-stream reader and writer. No socket."""
