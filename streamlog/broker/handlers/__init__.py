"""What a broker does for each request; one module a subject. `dispatch` has the table."""
