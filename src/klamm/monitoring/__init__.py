"""What a process tells those who watch it: Prometheus' text format, and as much HTTP as that needs."""
