"""What the Python processes of a local session start with; see `sitecustomize`."""
