"""Who is connected and what they may do: listeners, TLS, logins, credentials, authorization."""
