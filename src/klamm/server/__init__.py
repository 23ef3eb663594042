"""Server side of Kafka's protocol: sockets, connections, logins and the dispatch of requests to handlers."""
