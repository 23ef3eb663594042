"""Calls from many threads and coroutines on the connections of one thread, with retries until a deadline."""
